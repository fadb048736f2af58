package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// loIndex is the interface index of lo: the first device of every network namespace.
const loIndex = 1

// link is one network interface. The zero link is none.
type link struct {
	index    uint32
	loopback bool
	up       bool
}

// parseLink reads a struct ifinfomsg: family uint8, pad, type uint16, index int32, flags uint32, change uint32.
func parseLink(b []byte) (link, bool) {
	if len(b) < unix.SizeofIfInfomsg {
		return link{}, false
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	return link{
		index:    binary.NativeEndian.Uint32(b[4:]),
		loopback: flags&unix.IFF_LOOPBACK != 0,
		up:       flags&unix.IFF_UP != 0,
	}, true
}

// foreignLinks lists the links other than loopback. One that is up is an error: the namespace is not isolated.
// Links that are down are there when a tunnel module makes a device in every new namespace (sit0, tunl0).
func foreignLinks(s *netlinkSocket) ([]uint32, error) {
	var found []uint32
	err := s.dump(request{what: "list links", kind: unix.RTM_GETLINK, body: make([]byte, unix.SizeofIfInfomsg)}, func(b []byte) error {
		switch l, ok := parseLink(b); {
		case !ok || l.loopback:
			return nil
		case l.up:
			return fmt.Errorf("the namespace has interface %d besides lo, and it is up", l.index)
		default:
			found = append(found, l.index)
			return nil
		}
	})
	if len(found) > maxBaseline {
		return nil, fmt.Errorf("the namespace has more than %d interfaces besides lo", maxBaseline)
	}
	return found, err
}

// raiseLoopback brings lo up, gives it the sandbox's source addresses, and makes every address of each family local.
// It fails with EEXIST in a namespace that was set up before.
func raiseLoopback(s *netlinkSocket, v6 bool) error {
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], loIndex)
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	reqs := []request{
		{what: "bring lo up", kind: unix.RTM_NEWLINK, body: up},
		addAddr(ownAddr4()), addAnyIP(ownAddr4()),
	}
	if v6 {
		reqs = append(reqs, addAddr(ownAddr6()), addAnyIP(ownAddr6()))
	}
	for _, r := range reqs { // rtnetlink goes on after an error, so one at a time
		if err := s.do(r); err != nil {
			return err
		}
	}
	return nil
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addAddr is `ip addr add A dev lo`. struct ifaddrmsg: family, prefix length, flags, scope, index uint32.
func addAddr(a netip.Addr) request {
	b := []byte{family(a), uint8(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, loIndex)
	b = attr(b, unix.IFA_LOCAL, a.AsSlice()...)
	b = attr(b, unix.IFA_ADDRESS, a.AsSlice()...)
	return request{what: "add " + a.String() + " to lo", kind: unix.RTM_NEWADDR, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: b}
}

// addAnyIP is `ip route add local default dev lo table local src A`.
// struct rtmsg: family, destination length, source length, tos, table, protocol, scope, type, flags uint32.
func addAnyIP(src netip.Addr) request {
	b := []byte{family(src), 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	b = attrHost(b, unix.RTA_OIF, loIndex)
	b = attr(b, unix.RTA_PREFSRC, src.AsSlice()...)
	return request{what: "add the local default route of " + src.String(), kind: unix.RTM_NEWROUTE, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: b}
}

// enableIPv6 switches IPv6 on where a container runtime switched it off, and reports whether the kernel has it at all.
func enableIPv6() (bool, error) {
	for _, dir := range []string{"all", "default", "lo"} {
		err := setSysctl("/proc/sys/net/ipv6/conf/"+dir+"/disable_ipv6", "0")
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("enable IPv6: %w", err)
		}
	}
	return true, nil
}

// setSysctl writes only when the value differs: /proc/sys may be mounted read-only with the right value in it.
func setSysctl(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var buf [32]byte
	n, err := f.Read(buf[:])
	if err == nil && strings.TrimSpace(string(buf[:n])) == want {
		return nil
	}
	return os.WriteFile(path, []byte(want), 0)
}
