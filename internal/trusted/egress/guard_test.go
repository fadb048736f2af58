package egress

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct{ addr, name string }{
		// public
		{"1.1.1.1", ""}, {"8.8.8.8", ""}, {"140.82.121.4", ""}, {"223.255.255.255", ""}, {"9.255.255.255", ""}, {"11.0.0.0", ""},
		{"100.63.255.255", ""}, {"100.128.0.0", ""}, {"172.15.255.255", ""}, {"172.32.0.0", ""}, {"198.17.255.255", ""}, {"198.20.0.0", ""},
		{"168.63.129.15", ""}, {"2606:4700:4700::1111", ""}, {"2001:4860:4860::8888", ""}, {"2a00:1450:4001::1", ""}, {"2001:200::1", ""},
		{"64:ff9b::8.8.8.8", ""}, {"2606:4700::200:5efe:8.8.8.8", ""},

		// what net/netip calls global unicast
		{"0.1.2.3", "this network"}, {"100.64.0.1", "shared address space (carrier NAT)"}, {"100.100.100.200", "cloud metadata"},
		{"192.0.0.192", "cloud metadata"}, {"192.0.0.8", "IETF protocol assignments"}, {"198.18.0.1", "benchmarking"}, {"198.19.255.255", "benchmarking"},
		{"240.0.0.1", "reserved"}, {"168.63.129.16", "cloud metadata"}, {"::7f00:1", "IPv4-compatible"},
		{"64:ff9b::a9fe:a9fe", "NAT64 of cloud metadata"}, {"64:ff9b:1::a9fe:a9fe", "local-use NAT64"}, {"2002:a9fe:a9fe::1", "6to4"},
		{"2001::5601:5601", "Teredo"}, {"fec0::1", "site-local"},

		{"0.0.0.0", "this network"}, {"10.0.0.0", "private use"}, {"10.255.255.255", "private use"}, {"127.0.0.1", "loopback"},
		{"127.255.255.254", "loopback"}, {"169.254.0.1", "link-local"}, {"169.254.169.254", "cloud metadata"}, {"169.254.170.2", "cloud metadata"},
		{"172.16.0.1", "private use"}, {"172.31.255.255", "private use"}, {"192.0.2.1", "documentation"}, {"192.168.255.255", "private use"},
		{"192.88.99.1", "6to4 relays"}, {"198.51.100.7", "documentation"}, {"203.0.113.9", "documentation"}, {"224.0.0.1", "multicast"},
		{"239.255.255.250", "multicast"}, {"255.255.255.255", "limited broadcast"},

		{"::", "unspecified"}, {"::1", "loopback"}, {"::2", "IPv4-compatible"}, {"::ffff:127.0.0.1", "IPv4-mapped"}, {"::ffff:8.8.8.8", "IPv4-mapped"},
		{"::ffff:0:10.0.0.1", "IPv4-translated"}, {"64:ff9b::10.0.0.1", "NAT64 of private use"}, {"64:ff9b::127.0.0.1", "NAT64 of loopback"},
		{"64:ff9b::168.63.129.16", "NAT64 of cloud metadata"}, {"64:ff9b::1:0:0", "reserved by the IETF"}, {"100::1", "discard-only"},
		{"2001:2::1", "benchmarking"}, {"2001:10::1", "ORCHID"}, {"2001:20::1", "ORCHIDv2"}, {"2001:db8::1", "documentation"},
		{"2002:808:808::1", "6to4"}, {"3fff::1", "documentation"}, {"5f00::1", "segment routing"}, {"fc00::1", "unique local"},
		{"fd00:ec2::254", "cloud metadata"}, {"fd20:ce::254", "cloud metadata"}, {"fe80::1", "link-local"}, {"febf::1", "link-local"},
		{"ff02::1", "multicast"}, {"fe00::1", "reserved by the IETF"}, {"4000::1", "reserved by the IETF"}, {"e000::1", "reserved by the IETF"},
		{"2606:4700::200:5efe:10.0.0.1", "ISATAP of private use"}, {"2606:4700::5efe:169.254.169.254", "ISATAP of cloud metadata"},
		{"fe80::1%eth0", "link-local with a zone"}, {"2606:4700::1%eth0", "link-local with a zone"},
	} {
		name, special := Classify(netip.MustParseAddr(c.addr))
		if special != (c.name != "") || special && name != c.name {
			t.Errorf("%s: %q, %v; want %q", c.addr, name, special, c.name)
		}
	}
	if _, special := Classify(netip.Addr{}); !special {
		t.Error("no address passes the guard")
	}
}

func TestSpecialTableIsWellFormed(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for _, b := range Special() {
		if b.Prefix != b.Prefix.Masked() {
			t.Errorf("%s has bits beyond its length", b.Prefix)
		}
		if b.Name == "" || b.Source == "" {
			t.Errorf("%s: no name or source", b.Prefix)
		}
		if seen[b.Prefix] {
			t.Errorf("%s stands twice", b.Prefix)
		}
		seen[b.Prefix] = true
		for _, a := range []netip.Addr{b.Prefix.Addr(), last(b.Prefix)} {
			if _, special := Classify(a); !special {
				t.Errorf("%s of %s passes the guard", a, b.Prefix)
			}
		}
	}
	Special()[0].Name = "changed"
	if Special()[0].Name == "changed" {
		t.Error("the table can be changed from outside")
	}
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// FuzzClassify holds the guard against net/netip's own idea of what is not public, and against every way to write an IPv4 address in IPv6.
func FuzzClassify(f *testing.F) {
	for _, s := range []string{"8.8.8.8", "127.0.0.1", "::1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fe80::5efe:a00:1"} {
		f.Add(netip.MustParseAddr(s).AsSlice())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		name, special := Classify(a)
		if special != (name != "") {
			t.Fatalf("%s: %q but %v", a, name, special)
		}
		if !special && (!a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.Is4In6()) {
			t.Fatalf("%s passes the guard", a)
		}
		if !special && a.Is6() && !netip.MustParsePrefix("2000::/3").Contains(a) && !nat64.Contains(a) {
			t.Fatalf("%s is no global unicast address", a)
		}
		if !a.Is4() {
			return
		}
		for _, prefix := range []string{"64:ff9b::", "2606:4700::200:5efe:0:0", "2606:4700::5efe:0:0", "::", "::ffff:0:0", "::ffff:0:0:0", "2002::", "64:ff9b:1::"} {
			wide := netip.MustParseAddr(prefix).As16()
			if strings.HasPrefix(prefix, "2002") {
				binary.BigEndian.PutUint32(wide[2:], binary.BigEndian.Uint32(b))
			} else {
				copy(wide[12:], b)
			}
			if _, s := Classify(netip.AddrFrom16(wide)); special && !s {
				t.Fatalf("%s is %s, but passes the guard as %s", a, name, netip.AddrFrom16(wide))
			}
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	a := netip.MustParseAddr("2606:4700:4700::1111")
	b.ReportAllocs()
	for b.Loop() {
		Classify(a)
	}
}
