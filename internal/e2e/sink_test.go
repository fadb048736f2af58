package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"postern/internal/testkit"
)

// TestNothingArrivesButWhatIsAllowed sends TCP and UDP to every address of the host on the ports where something listens, and to the
// rest of the world on many ports. The sinks are live: the same bytes sent by the host arrive.
func TestNothingArrivesButWhatIsAllowed(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		sink := testkit.NewSink(t)
		sink.Reach(t, "control-"+w.echoKey.Random[:8])
		const nonce = "attempt-nonce"
		var commands [][]string
		for _, target := range sink.Targets(t) {
			commands = append(commands, []string{"tcp", target, nonce})
		}
		for _, a := range testkit.HostAddrs(t) {
			port := sink.UDP4
			if a.Is6() {
				port = sink.UDP6
			}
			to := netip.AddrPortFrom(a, port).String()
			commands = append(commands, []string{"udp", to, nonce}, []string{"dns", to, nonce + ".evil.test", "TXT"}, []string{"icmp", a.WithZone("").String(), nonce})
		}
		for _, s := range w.Servers() { // the fake internet itself, by address
			commands = append(commands, []string{"tcp", s.Addr, nonce})
		}
		for i, f := range w.probe(t, commands...) {
			if f.OK && f.Text("reply") == "sink\n" {
				t.Errorf("%v got an answer from the sink", commands[i])
			}
		}
		if n := sink.Holding(nonce); n != 0 {
			t.Errorf("%d attempts arrived: %+v", n, sink.Arrivals())
		}
		if got := w.Log.Holding(nonce); len(got) != 0 {
			t.Errorf("%d attempts arrived at a server", len(got))
		}
		ok(t, w.Run(t, "curl", "-fsS", "https://open.test/twin"))
		if len(w.Log.To("open.test")) == 0 {
			t.Error("the twin did not arrive: nothing gets through, so nothing was proved")
		}
	})
}

// TestTheWorldIsRefusedAtOnce: what no rule allows is answered or refused in well under a second, never with silence, and is recorded.
func TestTheWorldIsRefusedAtOnce(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		commands := [][]string{
			{"tcp", "198.51.100.1:80", "GET / HTTP/1.1\\r\\nHost: 198.51.100.1\\r\\n\\r\\n"},
			{"tcp", "169.254.169.254:80", "GET /latest/meta-data/ HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\n\\r\\n"},
			{"tcp", "[fd00:ec2::254]:80", "GET / HTTP/1.1\\r\\nHost: metadata\\r\\n\\r\\n"},
			{"tcp", "evil.test:22", "SSH-2.0-probe\\r\\n"}, {"tcp", "evil.test:25", "EHLO x\\r\\n"}, {"tcp", "evil.test:9418", "0032git-upload-pack /acme/widgets\\0host=evil.test\\0"},
			{"tcp", "198.51.100.7:6379", "PING\\r\\n"}, {"tcp", "[2001:db8::1]:443", "\\x00\\x01\\x02\\x03"}, {"tcp", "open.test:8443", "GET / HTTP/1.1\\r\\n\\r\\n"},
		}
		before := len(w.House.Audit(t))
		for i, f := range w.probe(t, commands...) {
			if ms, _ := f.Data["answer_ms"].(float64); f.OK && ms > 1000 {
				t.Errorf("%v hung for %v ms", commands[i], ms)
			}
			if !f.OK && f.Errno == "" {
				t.Errorf("%v: %s", commands[i], describe(f))
			}
		}
		denied := 0
		for _, r := range w.House.Audit(t)[before:] {
			if r.Text("verdict") == "deny" {
				denied++
			}
		}
		if denied < len(commands)/2 {
			t.Errorf("%d refusals were recorded for %d attempts", denied, len(commands))
		}
	})
}

func TestUDPAndQUICAreRefusedAndICMPIsSilent(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		quic := "\\xc3\\x00\\x00\\x00\\x01" + strings.Repeat("q", 1195)
		for _, f := range w.probe(t, []string{"udp", "evil.test:443", quic}, []string{"udp", "198.51.100.1:443", quic}, []string{"udp", "[2001:db8::1]:4433", quic}, []string{"udp", "open.test:123", "time"}) {
			if ms, _ := f.Data["ms"].(float64); f.OK || ms > 500 {
				t.Errorf("a datagram was not refused at once: %s", describe(f))
			}
		}
		for _, f := range w.probe(t, []string{"icmp", "198.51.100.1"}, []string{"icmp", "2001:db8::1"}, []string{"icmp", "169.254.169.254"}) {
			if f.OK {
				t.Errorf("something answered a ping: %s", describe(f))
			}
		}
	})
}

func TestDNSAnswersEveryServerAndAsksNobody(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		var commands [][]string
		for _, server := range []string{"192.0.2.53:53", "8.8.8.8:53", "127.0.0.53:53", "[2001:db8::53]:53"} {
			commands = append(commands, []string{"dns", server, "evil.test", "A"}, []string{"dns", server, "open.test", "A", "tcp"})
		}
		found := w.probe(t, commands...)
		for i, f := range found {
			answers, _ := f.Data["answers"].([]any)
			if !f.OK || len(answers) != 1 || !strings.HasPrefix(fmt.Sprint(answers[0]), "198.1") {
				t.Errorf("%v: %s", commands[i], describe(f))
			}
		}
		if a, b := fmt.Sprint(found[0].Data["answers"]), fmt.Sprint(found[2].Data["answers"]); a != b {
			t.Errorf("one name has two addresses: %s and %s", a, b)
		}
		for _, typ := range []string{"TXT", "MX", "NULL", "CNAME", "SRV", "ANY", "PRIVATE", "HTTPS", "SVCB"} {
			f := w.probe(t, []string{"dns", "192.0.2.53:53", "open.test", typ})[0]
			if answers, _ := f.Data["answers"].([]any); typ != "HTTPS" && typ != "SVCB" && typ != "ANY" && len(answers) != 0 {
				t.Errorf("%s was answered: %s", typ, describe(f))
			}
		}
	})
}

func TestTheSandboxsOwnServersWork(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		if f := w.probe(t, []string{"listen"})[0]; !f.OK {
			t.Errorf("%s", describe(f))
		}
	})
}

// TestUnixSocketsOfTheHostAreNotReachable: by path in a mounted directory, by path elsewhere, and abstract.
func TestUnixSocketsOfTheHostAreNotReachable(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		var hits atomic.Int64
		serve := func(addr string) {
			l, err := net.Listen("unix", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			if strings.HasPrefix(addr, "/") {
				if err := os.Chmod(addr, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					hits.Add(1)
					_ = c.Close()
				}
			}()
		}
		outside, err := os.MkdirTemp("", "postern-test-unix-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(outside) })
		if err := os.Chmod(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		abstract := "@postern-test-" + w.echoKey.Random[:12]
		paths := []string{filepath.Join(outside, "s"), filepath.Join(w.Work, "agent.sock"), abstract}
		for _, p := range paths {
			serve(p)
			c, err := net.Dial("unix", p)
			if err != nil {
				t.Fatalf("the control did not reach %s: %v", p, err)
			}
			_ = c.Close()
		}
		paths = append(paths, "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/resolve/io.systemd.Resolve", "/var/run/nscd/socket", "/tmp/.X11-unix/X0")
		waitFor(t, func() bool { return hits.Load() == 3 })
		var commands [][]string
		for _, p := range paths {
			commands = append(commands, []string{"unix", p})
		}
		for _, f := range w.probe(t, commands...) {
			if f.OK {
				t.Errorf("connected: %s", describe(f))
			}
		}
		if n := hits.Load(); n != 3 {
			t.Errorf("%d connections arrived from the sandbox", n-3)
		}
	})
}

// waitFor polls for what has no event to wait for, at most 5 seconds.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("what was waited for did not happen within 5 seconds")
		}
	}
}
