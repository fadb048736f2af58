package capture

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

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
