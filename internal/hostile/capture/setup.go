package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Setup prepares the network namespace of the calling thread and opens the sockets that serve it. The thread needs
// CAP_NET_ADMIN and CAP_NET_BIND_SERVICE over the namespace and a /proc that shows it. The namespace must be new: one that
// was set up before, or that has an interface besides lo that is up, is an error.
//
// The files are for Receive; the caller passes them out in their order and closes its own copies before untrusted code
// starts. They are close-on-exec. On an error there are none, and the namespace must be thrown away.
func Setup(c Config) (files []*os.File, err error) {
	s := &setup{config: c}
	defer func() {
		if err != nil {
			s.close()
			files, err = nil, fmt.Errorf("capture: %w", err)
		}
	}()
	if len(c.Ports) > MaxPorts {
		return nil, fmt.Errorf("more than %d ports", MaxPorts)
	}
	for _, step := range []func() error{s.network, s.openDNS, s.openTCP, s.selfTest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s.pack()
}

// setup is the state of one Setup call.
type setup struct {
	config   Config
	v6       bool
	rules    bool // the ruleset is in place
	baseline []uint32
	notes    []string
	kinds    []kind
	fds      []int
}

func (s *setup) close() {
	for _, fd := range s.fds {
		unix.Close(fd)
	}
}

// add takes a socket over, or the error in place of it.
func (s *setup) add(k kind, fd int, err error) error {
	if err != nil {
		return fmt.Errorf("open %s: %w", k, err)
	}
	s.kinds, s.fds = append(s.kinds, k), append(s.fds, fd)
	return nil
}

// network brings up addresses and routes. The tripwire is armed first, so that no link appears between it and the check.
func (s *setup) network() error {
	fd, err := watchLinks()
	if err := s.add(kindLinks, fd, err); err != nil {
		return err
	}
	if s.v6, err = enableIPv6(); err != nil {
		return err
	}
	if !s.v6 {
		s.notes = append(s.notes, "this kernel has no IPv6: IPv4 alone is captured")
	}
	route, err := openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer route.close()
	if s.baseline, err = foreignLinks(route); err != nil {
		return err
	}
	return raiseLoopback(route, s.v6)
}

func (s *setup) openDNS() error {
	fd, err := listenDNS(netip.IPv4Unspecified())
	if err := s.add(kindDNSUDP4, fd, err); err != nil {
		return err
	}
	fd, err = listenTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), dnsPort))
	if err := s.add(kindDNSTCP4, fd, err); err != nil || !s.v6 {
		return err
	}
	fd, err = listenDNS(netip.IPv6Unspecified())
	if err := s.add(kindDNSUDP6, fd, err); err != nil {
		return err
	}
	fd, err = listenTCP(netip.AddrPortFrom(netip.IPv6Unspecified(), dnsPort))
	return s.add(kindDNSTCP6, fd, err)
}

// openTCP opens the transparent listeners and loads the ruleset that leads to them, or else listens on the ports that were named.
func (s *setup) openTCP() error {
	if s.config.WithoutRuleset {
		return s.openPorts("the ruleset was not asked for")
	}
	have := len(s.fds)
	err := s.openTransparent()
	if err == nil || !unsupported(err) {
		return err
	}
	for _, fd := range s.fds[have:] {
		unix.Close(fd)
	}
	s.kinds, s.fds = s.kinds[:have], s.fds[:have]
	return s.openPorts("this kernel lacks nftables with TPROXY (" + err.Error() + ")")
}

func (s *setup) openTransparent() error {
	var at [2]netip.AddrPort
	for i, l := range []struct {
		kind kind
		addr netip.Addr
	}{{kindTCP4, ownAddr4()}, {kindTCP6, ownAddr6()}} {
		if l.addr.Is6() && !s.v6 {
			continue
		}
		fd, err := listenTransparent(l.addr)
		if err := s.add(l.kind, fd, err); err != nil {
			return err
		}
		if at[i], err = localAddr(fd); err != nil {
			return err
		}
	}
	if err := installRules(at[0], at[1]); err != nil {
		return fmt.Errorf("ruleset: %w", err)
	}
	s.rules = true
	return nil
}

// openPorts is the fallback: AnyIP brings every address here, and the named ports have listeners.
func (s *setup) openPorts(why string) error {
	s.notes = append(s.notes, fmt.Sprintf("%s: only the %d TCP ports that the policy names are captured, every other is refused by the kernel", why, len(s.config.Ports)))
	for _, path := range []string{"/proc/sys/net/ipv4/icmp_echo_ignore_all", "/proc/sys/net/ipv6/icmp/echo_ignore_all"} {
		if err := setSysctl(path, "1"); err != nil && !(errors.Is(err, os.ErrNotExist) && !s.v6) {
			s.notes = append(s.notes, "pings are answered, whatever the address: "+err.Error())
		}
	}
	seen := map[uint16]bool{dnsPort: true}
	for _, p := range s.config.Ports {
		port := uint16(p)
		if port == 0 || seen[port] {
			continue
		}
		seen[port] = true
		fd, err := listenTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
		if err := s.add(kindTCP4, fd, err); err != nil {
			return err
		}
		if !s.v6 {
			continue
		}
		fd, err = listenTCP(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err := s.add(kindTCP6, fd, err); err != nil {
			return err
		}
	}
	return nil
}

// pack describes the sockets in a manifest and puts it in front.
func (s *setup) pack() ([]*os.File, error) {
	head, err := manifest{Version: manifestVersion, Kinds: s.kinds, Baseline: s.baseline, Notes: s.notes}.seal()
	if err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	files := []*os.File{head}
	for i, fd := range s.fds {
		files = append(files, os.NewFile(uintptr(fd), string(s.kinds[i])))
	}
	return files, nil
}
