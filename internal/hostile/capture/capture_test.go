package capture

import (
	"context"
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

func TestNewLinkTripsTheWire(t *testing.T) {
	for _, probe := range []string{"admin-veth", "admin-veth-up"} {
		t.Run(probe, func(t *testing.T) {
			eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
				set := n.receive()
				tripped := make(chan error, 1)
				go func() { tripped <- set.Links.Wait(t.Context()) }()
				n.expect("", probe)
				if err := <-tripped; !errors.Is(err, ErrNewLink) {
					t.Errorf("Wait returned %v", err)
				}
			})
		})
	}
}

// Tunnel modules make a device in every new namespace. It stays down, and is no reason to refuse the sandbox.
func TestLinkThatWasThereTripsTheWireWhenItComesUp(t *testing.T) {
	for _, placement := range placements() {
		t.Run(placement, func(t *testing.T) {
			n := newNamespace(t, placement, Config{}, "admin-veth")
			set := n.receive()
			serve(t, set)
			n.expect("1.1.1.1:443", "tcp", "1.1.1.1:443")
			if set.Links.tripped(nil) || len(set.Links.baseline) != 2 {
				t.Errorf("baseline %v, want both ends of the pair", set.Links.baseline)
			}
			n.expect("", "admin-link-up")
			if err := set.Links.Wait(t.Context()); !errors.Is(err, ErrNewLink) {
				t.Errorf("Wait returned %v", err)
			}
		})
	}
}

func TestLinkWatchEndsWithItsContext(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- set.Links.Wait(ctx) }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait returned %v", err)
		}
		go func() { done <- set.Links.Wait(t.Context()) }() // and may be taken up again
		n.expect("", "admin-veth")
		if err := <-done; !errors.Is(err, ErrNewLink) {
			t.Errorf("the second Wait returned %v", err)
		}
	})
}

func TestNothingIsTracked(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		serve(t, n.receive())
		n.expect("1.1.1.1:443", "tcp", "1.1.1.1:443")
		n.expect("dns", "udp", "8.8.8.8:53")
		if got, _ := n.probe("admin-conntrack"); got != "0" && got != "ENOENT" {
			t.Errorf("%s connections are tracked", got)
		}
	})
}

func TestIPv6IsSwitchedOnWhereTheRuntimeSwitchedItOff(t *testing.T) {
	for _, placement := range placements() {
		t.Run(placement, func(t *testing.T) {
			n := newNamespace(t, placement, Config{}, "admin-no-ipv6")
			serve(t, n.receive())
			n.expect("[fd00::1]:443", "tcp", "[fd00::1]:443")
			n.expect("own server", "loopback", "[::1]:0")
		})
	}
}

func TestSetupRefusesANamespaceThatIsNotNew(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		if got, _ := n.probe("admin-setup-again"); got != "EEXIST" && got != "EADDRINUSE" {
			t.Errorf("a second Setup: %q", got)
		}
	})
	n, report := startNamespace(t, "user", Config{}, "admin-veth-up")
	if !strings.Contains(report.Error, "besides lo") || len(n.files) != 0 {
		t.Errorf("Setup with a second interface: %q, %d files", report.Error, len(n.files))
	}
}

func TestWithoutRulesetNamedPortsAreCaptured(t *testing.T) {
	c := Config{WithoutRuleset: true, Ports: []gate.Port{443, 8443, 443, 53}}
	eachPlacement(t, c, func(t *testing.T, n *namespace) {
		s := newSink(t)
		set := n.receive()
		serve(t, set)
		if len(set.TCP) != 4 || len(set.Notes) != 1 || !strings.Contains(set.Notes[0], "2 TCP ports") && !strings.Contains(set.Notes[0], "ports that the policy names") {
			t.Errorf("%d listeners, notes %q", len(set.TCP), set.Notes)
		}
		for _, to := range []string{"1.1.1.1:443", "[fd00::1]:443", "140.82.112.3:8443", "192.0.2.1:443"} {
			n.expect(to, "tcp", to)
		}
		for _, to := range []string{"1.1.1.1:80", "[fd00::1]:22", "169.254.169.254:80"} {
			n.expect("ECONNREFUSED", "tcp", to)
		}
		for _, server := range []string{"8.8.8.8:53", "127.0.0.53:53", "[::1]:53", "[2001:4860:4860::8888]:53"} {
			n.expect("dns", "udp", server)
			n.expect("dns", "tcp", server)
		}
		n.expect("ECONNREFUSED", "udp", "1.1.1.1:443")
		n.expect("", "admin-ping-group")
		n.expect("silence", "ping", "1.1.1.1")
		n.expect("silence", "ping", "fd00::1")
		n.expect("own server", "loopback", "127.0.0.1:0")
		for _, direct := range []string{"127.0.0.1:443", "[::1]:443"} {
			if got, _ := n.probe("tcp", direct); got != "ECONNRESET" && got != "EOF" {
				t.Errorf("%s: %q", direct, got)
			}
		}
		n.expect("0 of 40", "squat", "8443", "0.0.0.0")
		n.expect("0 of 40", "squat", "8443", "1.1.1.1")
		if r := n.refusals(); !slices.Equal(r, []gate.Reason{gate.ReasonDirectToListener, gate.ReasonDirectToListener}) {
			t.Errorf("refusals %v", r)
		}
		s.mustBeEmpty(t)
	})
}

func TestReceiveBelievesTheKernelNotTheManifest(t *testing.T) {
	files := func(t *testing.T) []*os.File { return newNamespace(t, "user", Config{}).files }
	other := func(t *testing.T, domain, typ, proto int) *os.File {
		fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "other")
	}
	for name, tamper := range map[string]func(t *testing.T) []*os.File{
		"no files":    func(*testing.T) []*os.File { return nil },
		"no manifest": func(t *testing.T) []*os.File { return files(t)[1:] },
		"one too few": func(t *testing.T) []*os.File { f := files(t); return f[:len(f)-1] },
		"two swapped": func(t *testing.T) []*os.File { f := files(t); f[1], f[2] = f[2], f[1]; return f },
		"host socket": func(t *testing.T) []*os.File {
			f := files(t)
			f[2] = other(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
			return f
		},
		"not a socket": func(t *testing.T) []*os.File { f := files(t); f[2] = f[0]; return f },
		"of another sandbox": func(t *testing.T) []*os.File {
			f, g := files(t), files(t)
			f[2] = g[2]
			return f
		},
		"all of the host": func(t *testing.T) []*os.File {
			head, err := manifest{Version: 1, Kinds: []kind{kindDNSUDP4}}.seal()
			if err != nil {
				t.Fatal(err)
			}
			return []*os.File{head, other(t, unix.AF_INET, unix.SOCK_DGRAM, 0)}
		},
		"nothing listening": func(t *testing.T) []*os.File {
			f := files(t)
			head, err := manifest{Version: 1, Kinds: []kind{kindLinks}}.seal()
			if err != nil {
				t.Fatal(err)
			}
			return []*os.File{head, f[1]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Receive(Config{}, tamper(t))
			if err == nil || set != nil {
				t.Errorf("accepted: %v", set)
			}
		})
	}
}

func TestConnectionOfAnotherNamespaceIsRefused(t *testing.T) {
	n := newNamespace(t, "user", Config{})
	set := n.receive()
	for _, l := range set.TCP {
		l.cookie++
	}
	serve(t, set)
	if got, _ := n.probe("tcp", "1.1.1.1:443"); got != "ECONNRESET" && got != "EOF" {
		t.Errorf("got %q", got)
	}
	if r := n.refusals(); !slices.Equal(r, []gate.Reason{gate.ReasonIdentity}) {
		t.Errorf("refusals %v", r)
	}
}

func TestAcceptedConnectionsAreKeptAlive(t *testing.T) {
	n := newNamespace(t, "user", Config{})
	set := n.receive()
	got := make(chan *Conn, 1)
	go func() {
		c, err := set.TCP[0].Accept()
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	go func() {
		c := <-got
		raw, err := c.SyscallConn()
		if err != nil {
			t.Error(err)
		}
		_ = raw.Control(func(fd uintptr) {
			if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 1 || err != nil {
				t.Errorf("SO_KEEPALIVE %d, %v", on, err)
			}
			if proto, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL); proto != unix.IPPROTO_TCP || err != nil {
				t.Errorf("protocol %d, %v", proto, err)
			}
		})
		_, _ = io.WriteString(c, "done")
		c.Close()
	}()
	n.expect("done", "tcp", "1.1.1.1:443")
}

func TestSetupTakesMilliseconds(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, first *namespace) {
		placement := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		times := []time.Duration{first.setup}
		for range 10 {
			times = append(times, newNamespace(t, placement, Config{}).setup)
		}
		slices.Sort(times)
		t.Logf("median %v, fastest %v, slowest %v", times[len(times)/2], times[0], times[len(times)-1])
		if median := times[len(times)/2]; median > 50*time.Millisecond { // five times the goal: the machine may be busy
			t.Errorf("median %v", median)
		}
	})
}
