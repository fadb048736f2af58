package capture

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/hostile/dns"
)

// startDNS serves a set's name queries with the real name server.
func startDNS(t *testing.T, set *Set) *dns.Server {
	t.Helper()
	s, err := dns.New(dns.Config{Seed: [32]byte{1, 2, 3, 4, 5, 6, 7, 8}, Allow: func(time.Time) gate.Reason { return gate.ReasonNone }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, set.DNSPacket, set.DNSStream) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// glibc checks that an answer comes from the address it asked, and so does Go.
func TestStrictResolversAreContentWhateverServerTheyAsk(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		names := startDNS(t, n.receive()).Names()
		host, err := gate.ParseHost("api.example.com")
		if err != nil {
			t.Fatal(err)
		}
		v4, v6, _ := names.Assign(host)
		for _, server := range []string{"127.0.0.53", "127.0.0.11", "9.9.9.9", "192.0.2.1", "::1", "2620:fe::fe"} {
			n.expect("", "admin-resolv-conf", server)
			got, took := n.probe("exec", "getent", "ahosts", "api.example.com")
			if !strings.Contains(got, v4.String()) || !strings.Contains(got, v6.String()) || took > 2*time.Second {
				t.Errorf("getent asking %s: %q after %v, want %v and %v", server, got, took, v4, v6)
			}
			if got, _ := n.probe("exec", "getent", "hosts", v4.String()); !strings.Contains(got, "api.example.com") {
				t.Errorf("getent asking %s: %v is %q", server, v4, got)
			}
			to := netip.AddrPortFrom(netip.MustParseAddr(server), 53).String()
			for _, network := range []string{"udp", "tcp"} {
				n.expect("["+v4.String()+"]", "go-resolve", network, to, "api.example.com.")
			}
		}
	})
}

func TestConnectionsCarryTheAddressThatNamesTheirHost(t *testing.T) {
	eachPlacement(t, Config{}, func(t *testing.T, n *namespace) {
		set := n.receive()
		names := startDNS(t, set).Names()
		n.expect("", "admin-resolv-conf", "127.0.0.53")
		named := make(chan gate.Host, 1)
		go func() {
			for {
				c, err := set.TCP[0].Accept()
				if err != nil {
					return
				}
				host, _ := names.Lookup(c.Original.Addr())
				named <- host
				_, _ = c.Write([]byte("ok"))
				c.Close()
			}
		}()
		for _, name := range []string{"api.example.com", "registry.example.org", "refused.example"} {
			host, err := gate.ParseHost(name)
			if err != nil {
				t.Fatal(err)
			}
			v4, _, _ := names.Assign(host)
			n.expect("ok", "tcp", netip.AddrPortFrom(v4, 443).String())
			if got := <-named; got != host {
				t.Errorf("the connection was to %v, want %v", got, host)
			}
		}
	})
}
