package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func networkChecks() []Check {
	const around = "something the gateway does not see can be reached"
	return []Check{
		{ID: "network.links", Title: "lo is the only interface", Essential: true, Means: around, Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return onlyLoopback() }},
		{ID: "network.routes", Title: "no route leads out", Essential: true, Means: around, Remedy: mendStart,
			run: func(context.Context, *Plan) Result {
				return noRouteOut("/proc/self/net/route", "/proc/self/net/ipv6_route")
			}},
		{ID: "network.tcp4", Title: "TCP to a public IPv4 address is answered by the gateway", Essential: true, Means: around, Remedy: mendStart,
			run: func(ctx context.Context, p *Plan) Result {
				return answeredByGateway(ctx, p, net.JoinHostPort(p.Public4, "443"))
			}},
		{ID: "network.tcp6", Title: "TCP to a public IPv6 address is answered by the gateway", Essential: true, Means: around, Remedy: mendStart,
			run: func(ctx context.Context, p *Plan) Result {
				if p.Public6 == "" {
					return unavailable("the kernel has no IPv6")
				}
				return answeredByGateway(ctx, p, net.JoinHostPort(p.Public6, "443"))
			}},
		{ID: "network.ports", Title: "every TCP port is captured", Means: "connections to ports that the policy does not name are refused by the kernel, without a record",
			Remedy: "load the kernel modules nf_tables and nft_tproxy (CONFIG_NFT_TPROXY): sudo modprobe nft_tproxy",
			run: func(ctx context.Context, p *Plan) Result {
				return everyPort(ctx, net.JoinHostPort(p.Public4, unusualPort))
			}},
		{ID: "network.udp", Title: "UDP is refused at once", Essential: true, Means: "QUIC and other protocols leave, or clients wait for answers that never come", Remedy: mendStart,
			run: func(ctx context.Context, p *Plan) Result { return udpRefused(ctx, net.JoinHostPort(p.Public4, "443")) }},
		{ID: "network.icmp", Title: "ping is silent", Essential: true, Means: "data can leave in echo requests", Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return pingSilent(p.Public4, pingSocket) }},
		{ID: "network.dns", Title: "every name server is the gateway", Essential: true, Means: "names can carry data out, and addresses do not name their host", Remedy: mendStart,
			run: func(ctx context.Context, p *Plan) Result { return everyNameServer(ctx, p, questions(p.Public4)) }},
		{ID: "network.metadata", Title: "cloud metadata services are refused", Essential: true, Means: "the machine's own cloud credentials can be fetched",
			Remedy: "remove rules with `address: 169.254.…` from the policy", run: metadataRefused},
	}
}

func onlyLoopback() Result {
	all, err := net.Interfaces()
	if err != nil {
		return notHeld("interfaces cannot be listed: %v", err)
	}
	return judgeLinks(all)
}

func judgeLinks(all []net.Interface) Result {
	var others []string
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			others = append(others, i.Name)
		}
	}
	switch {
	case len(others) > 0:
		return notHeld("also %s", strings.Join(others, ", "))
	case len(all) == 0:
		return notHeld("no interface is seen, not even lo")
	}
	return held("%d interface", len(all))
}

// noRouteOut reads the kernel's main routing tables; their interface is the first column for IPv4, the last for IPv6.
func noRouteOut(file4, file6 string) Result {
	text4, err := readSmall(file4)
	if err != nil {
		return notHeld("routes cannot be read: %v", err)
	}
	text6, err := readSmall(file6) // not there without IPv6
	if err != nil {
		text6 = ""
	}
	var out []string
	lines := strings.Split(text4, "\n")
	for _, line := range lines[min(1, len(lines)):] {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "lo" {
			out = append(out, f[0])
		}
	}
	for line := range strings.Lines(text6) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] != "lo" {
			out = append(out, f[len(f)-1])
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) > 0 {
		return notHeld("routes by %s", strings.Join(out, ", "))
	}
	return held("all routes stay on lo")
}

// unusualPort is one that no policy names.
const unusualPort = "61613"

func everyPort(ctx context.Context, address string) Result {
	c, err := dial(ctx, "tcp", address)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return unavailable("%s is refused by the kernel: the gateway has only the ports that the policy names", address)
	case err != nil:
		return notHeld("%s: %s", address, plain(err))
	}
	c.Close()
	return held("%s arrives at the gateway", address)
}

// udpRefused sends what could be QUIC.
func udpRefused(ctx context.Context, address string) Result {
	start := time.Now()
	c, err := dial(ctx, "udp", address)
	if err != nil {
		return notHeld("%s", plain(err))
	}
	defer c.Close()
	var b [64]byte
	if _, err = c.Write(b[:]); err == nil {
		_, err = c.Read(b[:])
	}
	switch {
	case err == nil:
		return notHeld("%s answered", address)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EPERM):
		return held("%s after %s", plain(err), time.Since(start).Round(10*time.Microsecond))
	}
	return notHeld("not refused: %s", plain(err))
}

// pingSocket makes a socket for pings: of kind SOCK_DGRAM, which some systems let everybody have, or SOCK_RAW.
func pingSocket(kind int) (int, error) {
	return unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
}

// pingSilent asks for an echo with whatever socket can be had. None is as good as silence.
func pingSilent(address string, open func(kind int) (int, error)) Result {
	addr, err := netip.ParseAddr(address)
	if err != nil || !addr.Is4() {
		return notHeld("%q is no IPv4 address to ping", address)
	}
	why := ""
	for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_RAW} {
		fd, err := open(kind)
		if err != nil {
			why = unix.ErrnoName(errnoOf(err))
			continue
		}
		defer unix.Close(fd)
		answered, err := echo(fd, addr)
		switch {
		case err != nil:
			return notHeld("a socket for pings could be had; sending failed: %v", err)
		case answered:
			return notHeld("%s answers pings", address)
		}
		why = "no answer within 200 ms"
	}
	return held("%s", why)
}

// echo sends one echo request (RFC 792) and waits 200 ms for anything.
func echo(fd int, to netip.Addr) (bool, error) {
	request := []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1} // type, code, checksum, identifier, sequence number
	wait := unix.NsecToTimeval(int64(200 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return false, err
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return false, err
	}
	for range 8 { // a raw socket also hears its own request
		b := make([]byte, 128)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		b = b[:n]
		if n > 20 && b[0]>>4 == 4 {
			b = b[min(n, int(b[0]&15)*4):]
		}
		if len(b) > 0 && b[0] == 0 {
			return true, nil
		}
	}
	return false, nil
}

// question is one way in which a resolver asks for a name.
type question struct {
	network, server string // the server with its port
	v6              bool
}

// questions go to servers that do not exist, and to where systemd-resolved would be.
func questions(server string) []question {
	at := net.JoinHostPort(server, "53")
	return []question{{"udp", at, false}, {"tcp", at, true}, {"udp", "127.0.0.53:53", true}}
}

func everyNameServer(ctx context.Context, p *Plan, list []question) Result {
	var answers []string
	for _, q := range list {
		addr, err := ask(ctx, q, p.Host)
		if err != nil {
			return notHeld("%s over %s: %s", q.server, q.network, plain(err))
		}
		if !slices.ContainsFunc(p.Synthetic, func(s string) bool {
			prefix, err := netip.ParsePrefix(s)
			return err == nil && prefix.Contains(addr)
		}) {
			return notHeld("%s over %s says %s, which is no address of the gateway's", q.server, q.network, addr)
		}
		answers = append(answers, fmt.Sprintf("%s over %s: %s", q.server, q.network, addr))
	}
	return held("%s", strings.Join(answers, "; "))
}

// plain is an error without the addresses that package net puts in front.
func plain(err error) string {
	if e := errnoOf(err); e != 0 {
		return unix.ErrnoName(e)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

func errnoOf(err error) unix.Errno {
	var e unix.Errno
	_ = errors.As(err, &e) // 0 when there is none
	return e
}
