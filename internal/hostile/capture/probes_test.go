package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// silence is how long a probe waits for an answer that must not come.
const silence = 50 * time.Millisecond

// probes are what the process inside can do. Each returns what it saw; an error is reported as the name of its errno.
func probes() map[string]func(args []string) (string, error) {
	return map[string]func([]string) (string, error){
		"tcp":         probeTCP,
		"tcp-from":    probeTCPFrom,
		"mptcp":       probeMPTCP,
		"udp":         probeUDP,
		"udp-burst":   probeUDPBurst,
		"ping":        probePing,
		"loopback":    probeLoopback,
		"squat":       probeSquat,
		"admin-squat": probeSquat,
		"squat-serve": probeSquatServe,
		"exec":        probeExec,
		"go-resolve":  probeGoResolve,
		"admin-raw":   probeRaw,
		"admin-ping":  probeRawPing,
		"admin-ping-group": func([]string) (string, error) {
			return "", os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0)
		},
		"admin-no-ipv6": func([]string) (string, error) {
			return "", os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
		},
		"admin-flush":         probeFlush,
		"admin-routes":        probeDeleteRoutes,
		"veth":                probeVeth,
		"flush":               probeFlush,
		"routes":              probeDeleteRoutes,
		"admin-veth":          probeVeth,
		"admin-veth-up":       probeVethUp,
		"admin-link-up":       probeLinkUp,
		"admin-conntrack":     func([]string) (string, error) { return readTrimmed("/proc/sys/net/netfilter/nf_conntrack_count") },
		"admin-resolv-conf":   probeResolvConf,
		"admin-setup-again":   probeSetupAgain,
		"admin-listener-port": probeListenerPort,
	}
}

func readTrimmed(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// probeTCP connects and reads what the other side says, at most a line.
func probeTCP(args []string) (string, error) { return talk(&net.Dialer{Timeout: deadline}, args[0]) }

// probeTCPFrom connects from an address of its own choice and reads until the other side has closed, so that it closes last.
func probeTCPFrom(args []string) (string, error) {
	d := &net.Dialer{Timeout: deadline, LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(args[0]))}
	c, err := d.Dial("tcp", args[1])
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func probeMPTCP(args []string) (string, error) {
	d := &net.Dialer{Timeout: deadline}
	d.SetMultipathTCP(true)
	return talk(d, args[0])
}

func talk(d *net.Dialer, to string) (string, error) {
	c, err := d.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
		return "", err
	}
	b := make([]byte, 256)
	n, err := c.Read(b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// probeUDP sends a datagram on a connected socket and waits for an answer or an error.
func probeUDP(args []string) (string, error) {
	c, err := net.Dial("udp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	wait := deadline
	if len(args) > 1 {
		wait = silence
	}
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("question")); err != nil {
		return "", err
	}
	b := make([]byte, 512)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// probeUDPBurst counts how many of 200 sockets are refused: ICMP rate limits must not turn refusals into silence.
func probeUDPBurst(args []string) (string, error) {
	refused := 0
	for range 200 {
		_, err := probeUDP(args)
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		} else if err != nil {
			return "", err
		}
	}
	return strconv.Itoa(refused), nil
}

// probePing sends an echo request on a ping socket.
func probePing(args []string) (string, error) {
	return echo(args[0], unix.SOCK_DGRAM)
}

func probeRawPing(args []string) (string, error) { return echo(args[0], unix.SOCK_RAW) }

func echo(to string, typ int) (string, error) {
	a := netip.MustParseAddr(to)
	proto, request, reply := unix.IPPROTO_ICMP, byte(8), byte(0)
	if a.Is6() {
		proto, request, reply = unix.IPPROTO_ICMPV6, 128, 129
	}
	fd, err := unix.Socket(int(family(a)), typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	packet := []byte{request, 0, 0, 0, 0, 1, 0, 1, 'p', 'i', 'n', 'g'}
	if a.Is4() {
		var sum uint32
		for i := 0; i < len(packet); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(packet[i:]))
		}
		binary.BigEndian.PutUint16(packet[2:], ^uint16(sum+sum>>16))
	}
	if err := unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(a, 0))); err != nil {
		return "", err
	}
	tv := unix.NsecToTimeval(silence.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return "", err
	}
	for b := make([]byte, 256); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return "silence", nil
		}
		if err != nil {
			return "", err
		}
		body := b[:n]
		if typ == unix.SOCK_RAW && a.Is4() {
			body = b[20:n]
		}
		if body[0] == reply {
			return "answered", nil
		}
	}
}

// probeLoopback serves on a loopback address and connects to it.
func probeLoopback(args []string) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", args[0])
	if err != nil {
		return "", err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "own server")
			c.Close()
		}
	}()
	return probeTCP([]string{l.Addr().String()})
}

// probeSquat tries to bind and listen on a port in every way there is and counts the successes.
func probeSquat(args []string) (string, error) {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	typ, proto := unix.SOCK_STREAM, unix.IPPROTO_TCP
	if len(args) > 2 && args[2] == "udp" {
		typ, proto = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	}
	at, err := netip.ParseAddr(args[1])
	if err != nil {
		return "", err
	}
	got := 0
	for i := range 40 {
		if squat(at, port, typ, proto, i) == nil {
			got++
		}
	}
	return fmt.Sprintf("%d of 40", got), nil
}

func squat(at netip.Addr, port, typ, proto, attempt int) error {
	fd, err := unix.Socket(int(family(at)), typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for bit, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if attempt>>bit&1 == 1 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
				return err
			}
		}
	}
	if attempt>>2&1 == 1 && at.Is4() {
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(at, uint16(port)))); err != nil {
		return err
	}
	if typ == unix.SOCK_DGRAM {
		return nil
	}
	return unix.Listen(fd, 1)
}

// probeSquatServe listens on an address of its own choice and connects to another: whoever answers, it is not this listener.
func probeSquatServe(args []string) (string, error) {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer l.Close()
	return probeTCP([]string{args[1]})
}

func probeExec(args []string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// probeGoResolve asks through Go's own resolver, over a transport and at a server of the caller's choice.
func probeGoResolve(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, args[0], args[1])
	}}
	addrs, err := r.LookupNetIP(ctx, "ip4", args[2])
	if err != nil {
		return "", err
	}
	return fmt.Sprint(addrs), nil
}

// probeRaw sends a packet of another IP protocol to an address and watches a raw socket for it.
func probeRaw(args []string) (string, error) {
	proto, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	a := netip.MustParseAddr(args[1])
	fd, err := unix.Socket(int(family(a)), unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte("0123456789abcdef"), 0, sockaddr(netip.AddrPortFrom(a, 0))); err != nil {
		return "", err
	}
	tv := unix.NsecToTimeval(silence.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return "", err
	}
	if _, _, err := unix.Recvfrom(fd, make([]byte, 256), 0); errors.Is(err, unix.EAGAIN) {
		return "silence", nil
	} else if err != nil {
		return "", err
	}
	return "received", nil
}

// probeFlush deletes the ruleset, as `nft flush ruleset` does.
func probeFlush([]string) (string, error) {
	s, err := openNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return "", err
	}
	defer s.close()
	return "", s.transaction([]request{{what: "delete every table", kind: nftKind(unix.NFT_MSG_DELTABLE), body: genmsg(unix.NFPROTO_INET, 0)}})
}

// probeDeleteRoutes takes AnyIP away.
func probeDeleteRoutes([]string) (string, error) {
	s, err := openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return "", err
	}
	defer s.close()
	for _, a := range []netip.Addr{ownAddr4(), ownAddr6()} {
		r := addAnyIP(a)
		r.kind, r.flags = unix.RTM_DELROUTE, 0
		if err := s.do(r); err != nil {
			return "", err
		}
	}
	return "", nil
}

// probeVeth makes a pair of virtual Ethernet devices and leaves them down.
func probeVeth([]string) (string, error) {
	s, err := openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return "", err
	}
	defer s.close()
	const veth = "veth"
	b := attrText(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, "out0")
	info := attr(nil, unix.IFLA_INFO_KIND, []byte(veth)...)
	b = nested(b, unix.IFLA_LINKINFO, info)
	return "", s.do(request{what: "add veth", kind: unix.RTM_NEWLINK, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: b})
}

func probeVethUp([]string) (string, error) {
	if _, err := probeVeth(nil); err != nil {
		return "", err
	}
	return probeLinkUp(nil)
}

// probeLinkUp brings one end of the pair up.
func probeLinkUp([]string) (string, error) {
	s, err := openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return "", err
	}
	defer s.close()
	i, err := net.InterfaceByName("out0")
	if err != nil {
		return "", err
	}
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], uint32(i.Index))
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	return "", s.do(request{what: "bring veth up", kind: unix.RTM_NEWLINK, body: up})
}

func probeSetupAgain([]string) (string, error) {
	files, err := Setup(Config{})
	for _, f := range files {
		f.Close()
	}
	return "", err
}

// probeListenerPort finds the listener's port as a process inside can: from /proc.
func probeListenerPort([]string) (string, error) {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "0A" && strings.HasPrefix(f[1], "010200C0:") {
			port, err := strconv.ParseUint(strings.TrimPrefix(f[1], "010200C0:"), 16, 16)
			return strconv.FormatUint(port, 10), err
		}
	}
	return "", errors.New("no listener")
}

// probeResolvConf mounts a resolv.conf with these servers over the host's, and an nsswitch.conf that asks them.
func probeResolvConf(servers []string) (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", err
	}
	conf := "options timeout:5 attempts:1\n"
	for _, s := range servers {
		conf += "nameserver " + s + "\n"
	}
	for path, content := range map[string]string{"/etc/resolv.conf": conf, "/etc/nsswitch.conf": "hosts: files dns\n"} {
		tmp, err := os.CreateTemp("", "conf")
		if err != nil {
			return "", err
		}
		defer os.Remove(tmp.Name()) // the mount keeps the file
		if _, err := tmp.WriteString(content); err != nil {
			return "", err
		}
		if err := errors.Join(tmp.Chmod(0o644), tmp.Close()); err != nil {
			return "", err
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // a mount of this probe
			return "", err
		}
		if err := unix.Mount(tmp.Name(), path, "", unix.MS_BIND, ""); err != nil {
			return "", err
		}
	}
	return "", nil
}
