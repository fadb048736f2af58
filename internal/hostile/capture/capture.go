// Package capture takes every connection that a sandbox opens, whatever its address and port, and hands it to the gateway.
//
// It has two halves. Setup runs inside the sandbox's new network namespace, with capabilities, before the sandbox's first
// instruction. Receive runs outside, in the gateway, on the files that Setup opened and that were passed out with SCM_RIGHTS.
//
// What Setup builds, in a namespace that holds only lo:
//
//	addresses  192.0.2.1 and 2001:db8::1 on lo, so that clients have a source address of each family
//	routes     local default dev lo table local, IPv4 and IPv6: every address is this machine ("AnyIP")
//	ruleset    one nftables table: TCP to any address but loopback goes to one listener (TPROXY); ICMP echo, and every
//	           protocol that is not TCP, UDP or an ICMP error, is dropped; nothing passes an interface other than lo
//	listeners  TCP on a port of the kernel's choice at the two addresses above; DNS on port 53 of every address, UDP and TCP
//	tripwire   a netlink socket that tells of every new link
//
// UDP to a port other than 53 meets no socket, so the local stack answers "port unreachable" and clients fail at once.
// With no interface but lo there is nowhere else for a packet to go: the ruleset decides how attempts fail, not whether
// they do. A process that flushes it, or deletes the routes, has less connectivity than before.
//
// DNS needs no redirection and no connection tracking: a socket bound to port 53 of the wildcard address hears queries to
// every address, loopback ones such as 127.0.0.53 included, and IP_PKTINFO says which one to answer from.
//
// The files travel in this order:
//
//	file 0     a sealed memfd: JSON, {"version":1,"kinds":[…],"baseline":[…],"notes":[…]}; at most 4 KiB
//	file 1…n   one socket for each kind: tcp4, tcp6, dns-udp4, dns-udp6, dns-tcp4, dns-tcp6, links
//
// Receive believes the kernel rather than that list: family, type, protocol, state and namespace of each socket are asked of it.
package capture

import (
	"net/netip"

	"postern/internal/core/gate"
)

// MaxPorts is how many TCP ports the fallback without a ruleset can listen on.
const MaxPorts = 64

const dnsPort = 53

// Config says what to capture, and what to do with what is refused before it reaches the caller.
type Config struct {
	// Ports are the TCP ports to listen on when the kernel has no nftables or no TPROXY, at most MaxPorts; every other port
	// is then refused by the kernel. Port 53 is always listened on, for DNS. Not used while the ruleset works.
	Ports []gate.Port
	// WithoutRuleset makes Setup behave as on a kernel without nftables. False: the ruleset is tried first.
	WithoutRuleset bool
	// Refused is told of every connection that a Listener closed by itself: why, and where it was going (the zero AddrPort
	// when that is unknown). It is called from Accept and must not block. Nil: nobody is told; the connection is closed all the same.
	Refused func(gate.Reason, netip.AddrPort)
}

// The sandbox's own addresses. They come from the documentation ranges (RFC 5737, RFC 3849): no real destination has them.
func ownAddr4() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 1}) }
func ownAddr6() netip.Addr { return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}) }

// kind names what one passed file is. The zero kind is none.
type kind string

const (
	kindTCP4    kind = "tcp4"
	kindTCP6    kind = "tcp6"
	kindDNSUDP4 kind = "dns-udp4"
	kindDNSUDP6 kind = "dns-udp6"
	kindDNSTCP4 kind = "dns-tcp4"
	kindDNSTCP6 kind = "dns-tcp6"
	kindLinks   kind = "links"
)
