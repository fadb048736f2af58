package capture

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

// serve answers every captured connection with the destination it had, and every DNS datagram with "dns".
func serve(t *testing.T, set *Set) {
	t.Helper()
	var wg sync.WaitGroup
	for _, l := range set.TCP {
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, c.Original.String())
				c.Close()
			}
		})
	}
	for _, l := range set.DNSStream {
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "dns")
				c.Close()
			}
		})
	}
	for _, p := range set.DNSPacket {
		wg.Go(func() {
			b := make([]byte, 512)
			for {
				_, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = p.WriteTo([]byte("dns"), from)
			}
		})
	}
	t.Cleanup(func() {
		set.Close()
		wg.Wait()
	})
}

// sink is a service of the host that a sandbox must not reach.
type sink struct {
	tcp []*net.TCPListener
	udp []*net.UDPConn
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{}
	for _, at := range []string{"0.0.0.0:0", "127.0.0.1:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		p, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		s.tcp, s.udp = append(s.tcp, l.(*net.TCPListener)), append(s.udp, p.(*net.UDPConn))
	}
	return s
}

// targets are the sink's ports on every address of the host.
func (s *sink) targets(t *testing.T) (tcp, udp []netip.AddrPort) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := netip.MustParsePrefix(a.String()).Addr()
		if ip.IsLinkLocalUnicast() && ip.Is6() {
			continue // needs a zone, which names an interface that the sandbox does not have
		}
		for i := range s.tcp {
			tcp = append(tcp, netip.AddrPortFrom(ip, s.tcp[i].Addr().(*net.TCPAddr).AddrPort().Port()))
			udp = append(udp, netip.AddrPortFrom(ip, s.udp[i].LocalAddr().(*net.UDPAddr).AddrPort().Port()))
		}
	}
	return tcp, udp
}

// mustBeEmpty fails when anything arrived. Whatever was sent has been delivered by the time its probe returned.
func (s *sink) mustBeEmpty(t *testing.T) {
	t.Helper()
	for i := range s.tcp {
		past := time.Now().Add(time.Millisecond)
		if err := errors.Join(s.tcp[i].SetDeadline(past), s.udp[i].SetReadDeadline(past)); err != nil {
			t.Fatal(err)
		}
		if c, err := s.tcp[i].Accept(); err == nil {
			t.Errorf("a connection reached the host's %v", c.LocalAddr())
			c.Close()
		}
		if _, from, err := s.udp[i].ReadFrom(make([]byte, 64)); err == nil {
			t.Errorf("a datagram from %v reached the host", from)
		}
	}
}

func TestEveryTCPPortArrivesWithItsDestination(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		serve(t, set)
		if len(set.Notes) != 0 || !set.IPv6 {
			t.Errorf("IPv6 %v, notes %q: this kernel should have everything", set.IPv6, set.Notes)
		}
		for _, to := range []string{
			"1.1.1.1:1", "198.18.0.1:443", "140.82.112.3:22", "169.254.169.254:80", "10.0.0.1:8443", "172.17.0.1:2375",
			"192.168.1.1:65535", "240.0.0.1:25", "203.0.113.9:9", "100.64.0.1:8080", "192.0.2.1:443",
			"[2606:4700::1111]:443", "[fd00::1]:1", "[fd00:ec2::254]:80", "[2001:db8::1]:443", "[fec0::1]:65535", "[64:ff9b::a9fe:a9fe]:80",
		} {
			n.expect(to, "tcp", to)
		}
		n.expect("93.184.216.34:443", "tcp", "[::ffff:93.184.216.34]:443")
		n.expect("1.1.1.1:443", "tcp-from", "127.0.0.1:0", "1.1.1.1:443")
		n.expect("1.1.1.1:443", "tcp-from", "198.51.100.7:0", "1.1.1.1:443")
		if r := n.refusals(); len(r) != 0 {
			t.Errorf("refused %v", r)
		}
	})
}

func TestHostServicesSeeNothing(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		s := newSink(t)
		serve(t, n.receive())
		tcp, udp := s.targets(t)
		for _, to := range tcp {
			want := to.String()
			if to.Addr().IsLoopback() {
				want = "ECONNREFUSED" // the sandbox's own loopback, where nobody listens
			}
			n.expect(want, "tcp", to.String())
		}
		for _, to := range udp {
			n.expect("ECONNREFUSED", "udp", to.String())
		}
		s.mustBeEmpty(t)
	})
}

// A server of the sandbox on a wildcard address must not draw in what goes to the same port elsewhere, which would hide a refusal.
func TestOwnWildcardServerDoesNotShadowOtherHosts(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		n.expect("1.1.1.1:8443", "squat-serve", "0.0.0.0:8443", "1.1.1.1:8443")
		n.expect("1.1.1.1:8443", "squat-serve", "1.1.1.1:8443", "1.1.1.1:8443")
		n.expect("[fd00::1]:8443", "squat-serve", "[::]:8443", "[fd00::1]:8443")
	})
}

// A captured connection lives on the port it was dialled to. That must not keep the sandbox from serving on the same port.
func TestOwnServerCanUseAPortThatConnectionsGoTo(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		held := make(chan *Conn, 2)
		go func() {
			for {
				c, err := set.TCP[0].Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "held")
				held <- c // stays open on this side
			}
		}()
		n.expect("held", "tcp", "1.1.1.1:8080")
		n.expect("own server", "loopback", "0.0.0.0:8080")
		n.expect("own server", "loopback", "127.0.0.1:8080")
		(<-held).Close()
	})
}

// The gateway closes first here, so its side of the last connection is in TIME_WAIT when the same four numbers come again.
func TestSourcePortCanBeUsedAgainAtOnce(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		for range 5 {
			n.expect("1.1.1.1:443", "tcp-from", "192.0.2.1:40001", "1.1.1.1:443")
			n.expect("[fd00::1]:443", "tcp-from", "[2001:db8::1]:40001", "[fd00::1]:443")
		}
	})
}

// As a gateway that is root does for containers: it enters the namespace on one thread, which is never used again.
func TestSetupOnOneThreadOfTheGateway(t *testing.T) {
	if os.Getuid() != 0 {
		return // an ordinary user cannot enter a namespace from a process with several threads
	}
	type prepared struct {
		files []*os.File
		err   error
	}
	ready, connect, done := make(chan prepared), make(chan struct{}), make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- prepared{err: err}
			return
		}
		files, err := Setup(Config{})
		ready <- prepared{files, err}
		<-connect
		out, err := probeTCP([]string{"1.1.1.1:443"})
		if err != nil {
			out = err.Error()
		}
		done <- out
	}()
	p := <-ready
	if p.err != nil {
		t.Fatal(p.err)
	}
	set, err := Receive(Config{}, p.files)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, set)
	close(connect)
	if got := <-done; got != "1.1.1.1:443" {
		t.Errorf("got %q", got)
	}
}

func TestMultipathClientIsCaptured(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		n.expect("1.1.1.1:443", "mptcp", "1.1.1.1:443")
		n.expect("[fd00::1]:443", "mptcp", "[fd00::1]:443")
	})
}

func TestDNSIsHeardAtEveryAddress(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		for _, server := range []string{"8.8.8.8:53", "127.0.0.53:53", "127.0.0.11:53", "127.0.0.1:53", "192.0.2.1:53", "[::1]:53", "[2001:4860:4860::8888]:53", "[::ffff:9.9.9.9]:53"} {
			n.expect("dns", "udp", server) // the socket is connected: only an answer from the address that was asked is read
			n.expect("dns", "tcp", server)
		}
	})
}

func TestOtherUDPIsRefusedAtOnce(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		for _, to := range []string{"1.1.1.1:443", "8.8.8.8:853", "169.254.169.254:123", "[2606:4700::1111]:443", "[fd00::1]:5353", "127.0.0.1:4000", "[::1]:4000"} {
			got, took := n.probe("udp", to)
			if got != "ECONNREFUSED" || took > 100*time.Millisecond {
				t.Errorf("%s: %s after %v, want ECONNREFUSED at once", to, got, took)
			}
		}
		n.expect("200", "udp-burst", "1.1.1.1:443")
		n.expect("200", "udp-burst", "[2606:4700::1111]:443")
	})
}

func TestMulticastGoesNowhere(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		group, err := net.ListenMulticastUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(239, 255, 77, 77), Port: 0})
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, 255, 77, 77}), group.LocalAddr().(*net.UDPAddr).AddrPort().Port())
		if got, _ := n.probe("udp", to.String(), "brief"); got == "" {
			t.Errorf("multicast to %v was answered", to)
		}
		if err := group.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, from, err := group.ReadFrom(make([]byte, 64)); err == nil {
			t.Errorf("multicast from %v reached the host", from)
		}
	})
}

func TestPingIsSilentExceptOnLoopback(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		n.expect("", "admin-ping-group")
		for _, probe := range []string{"ping", "admin-ping"} {
			for _, to := range []string{"1.1.1.1", "192.0.2.1", "169.254.169.254", "2606:4700::1111", "fd00::1"} {
				n.expect("silence", probe, to)
			}
			n.expect("answered", probe, "127.0.0.1")
			n.expect("answered", probe, "::1")
		}
	})
}

func TestOtherProtocolsAreDropped(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		for _, proto := range []string{"4", "41", "47", "50", "51", "132", "136", "253"} {
			n.expect("silence", "admin-raw", proto, "1.1.1.1")
			n.expect("silence", "admin-raw", proto, "fd00::1")
		}
	})
}

func TestOwnLoopbackServersAreUntouched(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		for _, at := range []string{"127.0.0.1:0", "127.8.9.10:0", "[::1]:0"} {
			n.expect("own server", "loopback", at)
		}
		n.expect("ECONNREFUSED", "tcp", "127.0.0.1:1")
		n.expect("ECONNREFUSED", "tcp", "[::1]:1")
	})
}

func TestListenerIsNotReachedDirectly(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		serve(t, set)
		for _, l := range set.TCP {
			at := netip.MustParseAddrPort(l.Addr().String())
			port := at.String()[strings.LastIndex(at.String(), ":"):]
			if got, _ := n.probe("tcp", at.String()); got != "ECONNRESET" && got != "EOF" {
				t.Errorf("connected to the listener itself: %q", got)
			}
			n.expect("ECONNREFUSED", "tcp", "127.0.0.1"+port)
			n.expect("ECONNREFUSED", "tcp", "[::1]"+port)
			n.expect("1.1.1.1"+port, "tcp", "1.1.1.1"+port)
		}
		if r := n.refusals(); !slices.Equal(r, []gate.Reason{gate.ReasonDirectToListener, gate.ReasonDirectToListener}) {
			t.Errorf("refusals %v, want two of %s", r, gate.ReasonDirectToListener)
		}
	})
}

func TestSquattingFails(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		serve(t, set)
		for _, l := range set.TCP {
			at := netip.MustParseAddrPort(l.Addr().String())
			port := at.String()[strings.LastIndex(at.String(), ":")+1:]
			n.expect("0 of 40", "squat", port, at.Addr().String())
			n.expect("0 of 40", "squat", port, map[bool]string{true: "0.0.0.0", false: "::"}[at.Addr().Is4()])
		}
		for _, at := range []string{"0.0.0.0", "::", "127.0.0.53", "8.8.8.8"} {
			n.expect("0 of 40", "squat", "53", at)
			n.expect("0 of 40", "squat", "53", at, "udp")
			n.expect("0 of 40", "admin-squat", "53", at) // even with the capability to bind low ports
			n.expect("0 of 40", "admin-squat", "53", at, "udp")
		}
	})
}

// Even with the capability to bind port 53, and even once the gateway is gone, a process inside can only answer itself.
func TestGatewayGoneMeansRefused(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		s := newSink(t)
		set := n.receive()
		ports := []string{}
		for _, l := range set.TCP {
			ports = append(ports, l.Addr().String())
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"1.1.1.1:443", "[fd00::1]:443", "8.8.8.8:53", ports[0], ports[1]} {
			n.expect("ECONNREFUSED", "tcp", to)
		}
		n.expect("ECONNREFUSED", "udp", "8.8.8.8:53")
		n.expect("ECONNREFUSED", "udp", "[::1]:53")
		for i, to := range []string{"1.1.1.1:443", "[fd00::1]:443"} {
			n.expect("ECONNREFUSED", "squat-serve", ports[i], to) // the freed port can be bound, but draws nothing in
		}
		tcp, _ := s.targets(t)
		for _, to := range tcp {
			n.expect("ECONNREFUSED", "tcp", to.String())
		}
		s.mustBeEmpty(t)
	})
}

func TestFlushingEverythingGivesLess(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		s := newSink(t)
		serve(t, n.receive())
		n.expect("1.1.1.1:443", "tcp", "1.1.1.1:443")
		n.expect("", "admin-flush")
		n.expect("ECONNREFUSED", "tcp", "1.1.1.1:443")
		n.expect("dns", "udp", "8.8.8.8:53")
		n.expect("", "admin-routes")
		n.expect("", "admin-veth-up")
		tcp, udp := s.targets(t)
		for i := range tcp {
			if got, _ := n.probe("tcp", tcp[i].String()); got != "ENETUNREACH" && got != "ECONNREFUSED" {
				t.Errorf("%v: %s", tcp[i], got)
			}
			if got, _ := n.probe("udp", udp[i].String(), "brief"); got == "" {
				t.Errorf("%v answered", udp[i])
			}
		}
		if got, _ := n.probe("tcp", "1.1.1.1:443"); got != "ENETUNREACH" {
			t.Errorf("without routes: %s", got)
		}
		s.mustBeEmpty(t)
	})
}

func TestSandboxWithoutCapabilitiesCannotChangeTheNamespace(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		for _, probe := range []string{"veth", "flush", "routes"} {
			n.expect("EPERM", probe)
		}
		n.expect("1.1.1.1:443", "tcp", "1.1.1.1:443")
	})
}
