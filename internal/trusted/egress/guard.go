package egress

import (
	"net/netip"
	"slices"
)

// A Block is a range of addresses that nothing is dialled in unless the configuration says so.
type Block struct {
	Prefix netip.Prefix
	Name   string
	Source string // the RFC or the document that sets it apart
}

// special is the IANA special-purpose address registries (RFC 6890) with everything in them refused, also what they call globally
// reachable: no service of a public name lives there. To them come multicast, the cloud metadata services, and of IPv6 all
// that IANA has not given out as global unicast.
var special = []Block{
	block("0.0.0.0/8", "this network", "RFC 791"),
	block("10.0.0.0/8", "private use", "RFC 1918"),
	block("100.64.0.0/10", "shared address space (carrier NAT)", "RFC 6598"),
	block("100.100.100.200/32", "cloud metadata", "Alibaba Cloud"),
	block("127.0.0.0/8", "loopback", "RFC 1122"),
	block("168.63.129.16/32", "cloud metadata", "Azure"),
	block("169.254.0.0/16", "link-local", "RFC 3927"),
	block("169.254.169.254/32", "cloud metadata", "AWS, Azure, Google Cloud and others"),
	block("169.254.170.2/32", "cloud metadata", "AWS ECS"),
	block("169.254.170.23/32", "cloud metadata", "AWS EKS"),
	block("172.16.0.0/12", "private use", "RFC 1918"),
	block("192.0.0.0/24", "IETF protocol assignments", "RFC 6890"),
	block("192.0.0.192/32", "cloud metadata", "Oracle Cloud"),
	block("192.0.2.0/24", "documentation", "RFC 5737"),
	block("192.31.196.0/24", "AS112", "RFC 7535"),
	block("192.52.193.0/24", "AMT relays", "RFC 7450"),
	block("192.88.99.0/24", "6to4 relays", "RFC 7526"),
	block("192.168.0.0/16", "private use", "RFC 1918"),
	block("192.175.48.0/24", "AS112", "RFC 7534"),
	block("198.18.0.0/15", "benchmarking", "RFC 2544"),
	block("198.51.100.0/24", "documentation", "RFC 5737"),
	block("203.0.113.0/24", "documentation", "RFC 5737"),
	block("224.0.0.0/4", "multicast", "RFC 5771"),
	block("240.0.0.0/4", "reserved", "RFC 1112"),
	block("255.255.255.255/32", "limited broadcast", "RFC 919"),

	block("::/8", "reserved by the IETF", "RFC 4291"),
	block("::/96", "IPv4-compatible", "RFC 4291"),
	block("::/128", "unspecified", "RFC 4291"),
	block("::1/128", "loopback", "RFC 4291"),
	block("::ffff:0:0/96", "IPv4-mapped", "RFC 4291"),
	block("::ffff:0:0:0/96", "IPv4-translated", "RFC 2765"),
	block("64:ff9b:1::/48", "local-use NAT64", "RFC 8215"),
	block("100::/8", "reserved by the IETF", "RFC 4291"),
	block("100::/64", "discard-only", "RFC 6666"),
	block("100:0:0:1::/64", "dummy prefix", "RFC 9780"),
	block("200::/7", "reserved by the IETF", "RFC 4048"),
	block("400::/6", "reserved by the IETF", "RFC 4291"),
	block("800::/5", "reserved by the IETF", "RFC 4291"),
	block("1000::/4", "reserved by the IETF", "RFC 4291"),
	block("2001::/23", "IETF protocol assignments", "RFC 2928"),
	block("2001::/32", "Teredo", "RFC 4380"),
	block("2001:2::/48", "benchmarking", "RFC 5180"),
	block("2001:3::/32", "AMT", "RFC 7450"),
	block("2001:4:112::/48", "AS112", "RFC 7535"),
	block("2001:10::/28", "ORCHID", "RFC 4843"),
	block("2001:20::/28", "ORCHIDv2", "RFC 7343"),
	block("2001:30::/28", "drone remote identification", "RFC 9374"),
	block("2001:db8::/32", "documentation", "RFC 3849"),
	block("2002::/16", "6to4", "RFC 3056"),
	block("2620:4f:8000::/48", "AS112", "RFC 7534"),
	block("3ffe::/16", "6bone, returned", "RFC 3701"),
	block("3fff::/20", "documentation", "RFC 9637"),
	block("4000::/2", "reserved by the IETF", "RFC 4291"),
	block("5f00::/16", "segment routing", "RFC 9602"),
	block("8000::/1", "reserved by the IETF", "RFC 4291"),
	block("fc00::/7", "unique local", "RFC 4193"),
	block("fd00:ec2::254/128", "cloud metadata", "AWS"),
	block("fd20:ce::254/128", "cloud metadata", "Google Cloud"),
	block("fe80::/10", "link-local", "RFC 4291"),
	block("fec0::/10", "site-local", "RFC 3879"),
	block("ff00::/8", "multicast", "RFC 4291"),
}

func block(prefix, name, source string) Block {
	return Block{netip.MustParsePrefix(prefix), name, source}
}

// nat64 is where a NAT64 puts the public IPv4 internet (RFC 6052 §2.1). It is the one range that is judged by the IPv4
// address inside: on a network without IPv4 it is the only way to most hosts. A network's own NAT64 prefix cannot be known here.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Special lists the ranges that are refused, for the reference page.
func Special() []Block { return slices.Clone(special) }

// Classify names the most specific special range that an address is in, and whether it is in any. What is left is public.
//
// IPv4-mapped, IPv4-compatible, 6to4 and Teredo addresses are special whatever they hold. NAT64 (64:ff9b::/96) and ISATAP
// addresses (RFC 5214 §6.1) are special when the IPv4 address inside is. An invalid address and one with a zone are special.
func Classify(a netip.Addr) (name string, isSpecial bool) {
	switch {
	case !a.IsValid():
		return "no address", true
	case a.Zone() != "":
		return "link-local with a zone", true
	case a.Is4():
		return lookup(a)
	}
	b := a.As16()
	inner := netip.AddrFrom4([4]byte(b[12:]))
	if nat64.Contains(a) {
		name, isSpecial = lookup(inner)
		return within("NAT64", name), isSpecial
	}
	if name, isSpecial := lookup(a); isSpecial {
		return name, true
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		name, isSpecial = lookup(inner)
		return within("ISATAP", name), isSpecial
	}
	return "", false
}

func within(form, name string) string {
	if name == "" {
		return ""
	}
	return form + " of " + name
}

func lookup(a netip.Addr) (string, bool) {
	name, bits := "", -1
	for i := range special {
		if p := special[i].Prefix; p.Bits() > bits && p.Contains(a) {
			name, bits = special[i].Name, p.Bits()
		}
	}
	return name, bits >= 0
}
