package capture

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// backlog is the length of an accept queue; the kernel caps it at net.core.somaxconn.
const backlog = 4096

// bind46 makes a plain socket, never MPTCP, and binds it with neither SO_REUSEADDR nor SO_REUSEPORT: with SO_REUSEPORT, or either of
// them on UDP, a process of the sandbox could bind the same port. An IPv6 socket hears IPv6 alone, so that addresses never come mapped.
func bind46(typ, proto int, at netip.AddrPort, options ...int) (int, error) {
	domain := int(family(at.Addr()))
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, err
	}
	level := unix.SOL_IP
	if domain == unix.AF_INET6 {
		level = unix.SOL_IPV6
		options = append([]int{unix.IPV6_V6ONLY}, options...)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, level, o, 1); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func listenTCP(at netip.AddrPort, options ...int) (int, error) {
	fd, err := bind46(unix.SOCK_STREAM, unix.IPPROTO_TCP, at, options...)
	if err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// listenTransparent opens the listener that TPROXY feeds, on a port that the kernel chooses.
func listenTransparent(at netip.Addr) (int, error) {
	option := unix.IP_TRANSPARENT
	if at.Is6() {
		option = unix.IPV6_TRANSPARENT
	}
	fd, err := listenTCP(netip.AddrPortFrom(at, 0), option)
	if err != nil {
		return -1, err
	}
	// Accepted connections inherit this. Each occupies the port it was dialled to, and without it no server of the sandbox could
	// bind that port meanwhile. The listener itself cannot be shared: in the LISTEN state SO_REUSEADDR gives nothing away.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// listenDNS opens port 53 of every address for datagrams, with the asked address told for each, and leave to answer from it.
func listenDNS(any netip.Addr) (int, error) {
	at := netip.AddrPortFrom(any, dnsPort)
	if any.Is4() {
		return bind46(unix.SOCK_DGRAM, unix.IPPROTO_UDP, at, unix.IP_PKTINFO, unix.IP_FREEBIND)
	}
	return bind46(unix.SOCK_DGRAM, unix.IPPROTO_UDP, at, unix.IPV6_RECVPKTINFO, unix.IPV6_FREEBIND)
}

// watchLinks opens a socket on which the kernel tells of every change to a link of this namespace.
func watchLinks() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// localAddr is the address a socket is bound to.
func localAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

// cookieOf names the network namespace a socket lives in (SO_NETNS_COOKIE, Linux 5.14). Zero is no namespace.
func cookieOf(fd int) (uint64, error) {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil && c == 0 {
		err = unix.ENODATA
	}
	return c, err
}

// pktinfo encodes the control message that makes a datagram leave from an address.
//
//	IPv4  in_pktinfo   interface uint32 0, source 4 bytes, unused 4 bytes
//	IPv6  in6_pktinfo  source 16 bytes, interface uint32
func pktinfo(b []byte, from netip.Addr) []byte {
	level, typ, size := unix.SOL_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo
	if from.Is6() {
		level, typ, size = unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo
	}
	b = binary.NativeEndian.AppendUint64(b, uint64(unix.CmsgLen(size)))
	b = binary.NativeEndian.AppendUint32(b, uint32(level))
	b = binary.NativeEndian.AppendUint32(b, uint32(typ))
	if from.Is4() {
		a := from.As4()
		b = append(b, 0, 0, 0, 0)
		b = append(b, a[:]...)
		return append(b, 0, 0, 0, 0)
	}
	a := from.As16()
	b = append(b, a[:]...)
	b = binary.NativeEndian.AppendUint32(b, loIndex)
	return append(b, 0, 0, 0, 0) // CmsgSpace rounds 20 bytes up to 24
}

// askedAddr reads the address a datagram was sent to from its control messages.
func askedAddr(oob []byte) (netip.Addr, bool) {
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return netip.Addr{}, false
		}
		switch {
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(data[8:12])), true
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(data[:16])), true
		}
		oob = rest
	}
	return netip.Addr{}, false
}
