package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func host(t interface{ Fatal(...any) }, name string) gate.Host {
	h, err := gate.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// clock is a time that tests move.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newTable(t interface{ Fatal(...any) }, capacity int, rest time.Duration, seed byte) (*Names, *clock) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	n, err := newNames(Config{Capacity: capacity, Rest: rest, Now: c.now, Seed: [32]byte{seed, 1, 2, 3, 4, 5, 6, 7, seed, seed}})
	if err != nil {
		t.Fatal(err)
	}
	return n, c
}

func TestAddressesAreStableAndNameTheirHost(t *testing.T) {
	n, _ := newTable(t, 0, 0, 7)
	v4, v6, ok := n.Assign(host(t, "api.example.com"))
	if !ok || !netip.MustParsePrefix("198.18.0.0/15").Contains(v4) || !netip.MustParsePrefix("fd07:102:304:506::/64").Contains(v6) {
		t.Fatalf("%v %v %v", v4, v6, ok)
	}
	for _, a := range []netip.Addr{v4, v6, netip.AddrFrom16(v4.As16())} {
		if got, ok := n.Lookup(a); !ok || got != host(t, "api.example.com") {
			t.Errorf("Lookup(%v) = %v, %v", a, got, ok)
		}
	}
	if a, b, _ := n.Assign(host(t, "API.Example.COM")); a != v4 || b != v6 {
		t.Errorf("the same name got %v %v, then %v %v", v4, v6, a, b)
	}
	if a, b, _ := n.Assign(host(t, "example.com")); a == v4 || b == v6 {
		t.Error("two names share an address")
	}
}

func TestAddressesThatWereNeverGivenOutStandForNothing(t *testing.T) {
	n, _ := newTable(t, 0, 0, 7)
	v4, v6, _ := n.Assign(host(t, "a.test"))
	for _, a := range []netip.Addr{
		{}, v4.Next(), v6.Next(), v6.WithZone("lo"), netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr("198.19.255.255"), netip.MustParseAddr("198.20.0.1"),
		netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("fd07:102:304:506::"), netip.MustParseAddr("fd07:102:304:506:ffff:ffff:ffff:ffff"), netip.MustParseAddr("::1"),
	} {
		if h, ok := n.Lookup(a); ok {
			t.Errorf("Lookup(%v) = %v", a, h)
		}
	}
	if _, _, ok := n.Assign(gate.Host{}); ok {
		t.Error("the zero Host got an address")
	}
}

func TestSessionsHaveDifferentAddresses(t *testing.T) {
	a, _ := newTable(t, 0, 0, 1)
	b, _ := newTable(t, 0, 0, 2)
	a4, a6, _ := a.Assign(host(t, "a.test"))
	b4, b6, _ := b.Assign(host(t, "a.test"))
	if a4 == b4 || a6 == b6 {
		t.Errorf("%v %v in one session, %v %v in the other", a4, a6, b4, b6)
	}
}

// Every place has addresses of its own, none of which looks like a network or a broadcast address.
func TestPlacesAndAddressesMatchOneToOne(t *testing.T) {
	n, _ := newTable(t, 0, 0, 200)
	n.place = make([]place, addresses)
	seen := make(map[netip.Addr]bool, addresses)
	for i := range int32(addresses) {
		v4 := n.v4(i)
		if last := v4.As4()[3]; seen[v4] || last == 0 || last == 255 || !netip.MustParsePrefix("198.18.0.0/15").Contains(v4) {
			t.Fatalf("place %d has %v", i, v4)
		}
		seen[v4] = true
		if j, ok := n.find(v4); !ok || j != i {
			t.Fatalf("%v leads to place %d, want %d", v4, j, i)
		}
		if j, ok := n.find(n.v6(i)); !ok || j != i {
			t.Fatalf("%v leads to place %d, want %d", n.v6(i), j, i)
		}
	}
}

func TestFullTableRefusesRatherThanMisattributes(t *testing.T) {
	n, c := newTable(t, 4, time.Minute, 1)
	var first netip.Addr
	for i := range 4 {
		v4, _, ok := n.Assign(host(t, fmt.Sprintf("n%d.test", i)))
		if !ok {
			t.Fatal("refused below capacity")
		}
		if i == 0 {
			first = v4
		}
		c.t = c.t.Add(time.Second)
	}
	if _, _, ok := n.Assign(host(t, "one-more.test")); ok {
		t.Fatal("a name in use was given up")
	}
	c.t = c.t.Add(58 * time.Second) // n0 was used 62 seconds ago, n1 61
	if _, ok := n.Lookup(first); !ok {
		t.Fatal("n0 is gone")
	}
	v4, _, ok := n.Assign(host(t, "one-more.test"))
	if !ok || v4 == first {
		t.Fatalf("%v %v: a connection to n0 is a use of it, so n1 had to go", v4, ok)
	}
	if _, ok := n.Lookup(first); !ok {
		t.Error("n0 is gone")
	}
	if _, known := n.byName[host(t, "n1.test")]; known || n.Len() != 4 {
		t.Errorf("n1 is still there, or %d names are", n.Len())
	}
}

// Against a naive record of everything that ever happened: stable, one to one, bounded, and never reused too early.
func TestNamesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 6).Draw(t, "capacity")
		const rest = 100 * time.Second
		n, c := newTable(t, capacity, rest, 3)
		type past struct {
			host gate.Host
			used time.Time
		}
		current := map[gate.Host][2]netip.Addr{}
		ever := map[netip.Addr]past{} // the last owner of each address, and its last use
		others := map[netip.Addr]map[gate.Host]bool{}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			c.t = c.t.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			h := host(t, fmt.Sprintf("h%d.test", rapid.IntRange(0, 20).Draw(t, "host")))
			if rapid.Bool().Draw(t, "lookup") {
				if a, ok := current[h]; ok {
					addr := a[rapid.IntRange(0, 1).Draw(t, "family")]
					got, found := n.Lookup(addr)
					if found && got != ever[addr].host {
						t.Fatalf("%v names %v, was last given to %v", addr, got, ever[addr].host)
					}
					if found && got == h {
						ever[a[0]] = past{h, c.t}
					}
				}
				continue
			}
			v4, v6, ok := n.Assign(h)
			if !ok {
				if n.Len() < capacity {
					t.Fatal("refused below capacity")
				}
				continue
			}
			if was, given := ever[v6]; given && was.host != h {
				t.Fatalf("%v stood for %v and now stands for %v", v6, was.host, h)
			}
			if was, given := ever[v4]; given && was.host != h {
				if c.t.Sub(was.used) < rest {
					t.Fatalf("%v changed hands %v after its last use", v4, c.t.Sub(was.used))
				}
				if len(others[v4]) < capacity {
					t.Fatalf("%v changed hands after %d other names", v4, len(others[v4]))
				}
			}
			for a := range ever {
				if a != v4 && others[a] != nil {
					others[a][h] = true
				}
			}
			others[v4] = map[gate.Host]bool{}
			ever[v4], ever[v6] = past{h, c.t}, past{h, c.t}
			current[h] = [2]netip.Addr{v4, v6}
			if n.Len() > capacity || len(n.place) > 2*capacity {
				t.Fatalf("%d names in %d places, capacity %d", n.Len(), len(n.place), capacity)
			}
			for i, p := range n.place { // one to one
				if !p.host.IsZero() && n.byName[p.host] != int32(i) {
					t.Fatalf("place %d and name %v disagree", i, p.host)
				}
			}
		}
	})
}

func FuzzNames(f *testing.F) {
	f.Add("api.example.com", uint8(1))
	f.Add("localhost", uint8(0))
	f.Add("1.0.18.198.in-addr.arpa", uint8(9))
	f.Add(strings.Repeat("a.", 120)+"test", uint8(255))
	n, c := newTable(f, 64, time.Second, 5)
	f.Fuzz(func(t *testing.T, name string, seconds uint8) {
		h, err := gate.ParseHost(name)
		if err != nil {
			return
		}
		c.t = c.t.Add(time.Duration(seconds) * time.Second)
		v4, v6, ok := n.Assign(h)
		if !ok {
			return
		}
		for _, a := range []netip.Addr{v4, v6} {
			if got, ok := n.Lookup(a); !ok || got != h {
				t.Fatalf("%v stands for %v, want %v", a, got, h)
			}
		}
		if again4, again6, _ := n.Assign(h); again4 != v4 || again6 != v6 {
			t.Fatal("not stable")
		}
		if n.Len() > 64 || len(n.place) > 128 {
			t.Fatalf("%d names in %d places", n.Len(), len(n.place))
		}
	})
}

func BenchmarkAssignKnown(b *testing.B) {
	n, _ := newTable(b, 0, 0, 1)
	h := host(b, "api.example.com")
	b.ReportAllocs()
	for b.Loop() {
		n.Assign(h)
	}
}

func BenchmarkLookup(b *testing.B) {
	n, _ := newTable(b, 0, 0, 1)
	v4, _, _ := n.Assign(host(b, "api.example.com"))
	b.ReportAllocs()
	for b.Loop() {
		n.Lookup(v4)
	}
}
