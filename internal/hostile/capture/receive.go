package capture

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Set is what one sandbox's namespace is served by. The caller owns it and closes it with Close.
type Set struct {
	TCP       []*Listener      // every captured connection arrives on one of them
	DNSPacket []net.PacketConn // queries to port 53 of any address; WriteTo answers from the address that was asked
	DNSStream []net.Listener   // the same over TCP; accepted connections are *net.TCPConn
	Links     *LinkWatch
	Cookie    uint64   // of the sandbox's network namespace; never zero
	IPv6      bool     // whether IPv6 is captured
	Notes     []string // protections and conveniences that this kernel could not give; to be announced

	once   sync.Once
	closed error
}

// Receive makes a Set of the files that Setup returned, in their order. It takes the files over and closes them, also on an error.
// It asks the kernel what each file is, and refuses the whole lot if one is not what the manifest says, if they are not all of one
// network namespace, or if that namespace is the caller's own.
func Receive(c Config, files []*os.File) (set *Set, err error) {
	set = &Set{}
	defer func() {
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			set.Close()
			set, err = nil, fmt.Errorf("capture: receive: %w", err)
		}
	}()
	if len(files) == 0 {
		return set, errors.New("no files")
	}
	m, err := readManifest(files[0])
	if err != nil {
		return set, fmt.Errorf("manifest: %w", err)
	}
	if len(m.Kinds) != len(files)-1 {
		return set, fmt.Errorf("%d files for %d kinds", len(files)-1, len(m.Kinds))
	}
	if set.Cookie, err = commonCookie(files[1:]); err != nil {
		return set, err
	}
	for i, k := range m.Kinds {
		if err := set.take(c, k, files[i+1], m.Baseline); err != nil {
			return set, fmt.Errorf("file %d: %w", i+1, err)
		}
	}
	if len(set.DNSPacket) == 0 || len(set.DNSStream) == 0 || set.Links == nil {
		return set, errors.New("a DNS socket or the link watch is missing")
	}
	set.IPv6 = slices.Contains(m.Kinds, kindDNSUDP6)
	set.Notes = m.Notes
	return set, nil
}

// take verifies one socket and files it under its kind.
func (s *Set) take(c Config, k kind, f *os.File, baseline []uint32) error {
	if err := verifyKind(k, f); err != nil {
		return err
	}
	switch k {
	case kindTCP4, kindTCP6:
		l, err := newListener(c, f, s.Cookie)
		if err != nil {
			return err
		}
		s.TCP = append(s.TCP, l)
	case kindDNSTCP4, kindDNSTCP6:
		l, err := listenerOf(f)
		if err != nil {
			return err
		}
		s.DNSStream = append(s.DNSStream, &streamListener{l, s.Cookie})
	case kindDNSUDP4, kindDNSUDP6:
		p, err := newPacketConn(f)
		if err != nil {
			return err
		}
		s.DNSPacket = append(s.DNSPacket, p)
	case kindLinks:
		if s.Links != nil {
			return errors.New("a second link watch")
		}
		w, err := newLinkWatch(f, baseline)
		if err != nil {
			return err
		}
		s.Links = w
	}
	return nil
}

// Close closes every socket of the set: the kernel then refuses what the sandbox opens. It may be called more than once.
func (s *Set) Close() error {
	s.once.Do(func() {
		var errs []error
		for _, l := range s.TCP {
			errs = append(errs, l.Close())
		}
		for _, l := range s.DNSStream {
			errs = append(errs, l.Close())
		}
		for _, p := range s.DNSPacket {
			errs = append(errs, p.Close())
		}
		if s.Links != nil {
			errs = append(errs, s.Links.Close())
		}
		for i, err := range errs {
			if errors.Is(err, net.ErrClosed) {
				errs[i] = nil
			}
		}
		s.closed = errors.Join(errs...)
	})
	return s.closed
}

// commonCookie is the one namespace that all files live in, which is not the caller's.
func commonCookie(files []*os.File) (uint64, error) {
	var cookie uint64
	for i, f := range files {
		c, err := cookieOf(int(f.Fd()))
		switch {
		case err != nil:
			return 0, fmt.Errorf("network namespace of file %d: %w", i+1, err)
		case i > 0 && c != cookie:
			return 0, errors.New("files of more than one network namespace")
		}
		cookie = c
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	own, err := cookieOf(fd)
	if err != nil {
		return 0, err
	}
	if cookie == own || cookie == 0 {
		return 0, errors.New("the sandbox's network namespace is the gateway's own")
	}
	return cookie, nil
}

// verifyKind asks the kernel whether f is a socket of kind k.
func verifyKind(k kind, f *os.File) error {
	want := map[kind][4]int{ // domain, type, protocol, accepting
		kindTCP4:    {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, 1},
		kindTCP6:    {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, 1},
		kindDNSTCP4: {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, 1},
		kindDNSTCP6: {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, 1},
		kindDNSUDP4: {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP, 0},
		kindDNSUDP6: {unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP, 0},
		kindLinks:   {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, 0},
	}
	w, known := want[k]
	if !known {
		return errors.New("a kind that this version does not know")
	}
	for i, option := range []int{unix.SO_DOMAIN, unix.SO_TYPE, unix.SO_PROTOCOL, unix.SO_ACCEPTCONN} {
		got, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, option)
		if err != nil {
			return fmt.Errorf("ask what the socket is: %w", err)
		}
		if got != w[i] {
			return fmt.Errorf("not a %s socket", k)
		}
	}
	return nil
}
