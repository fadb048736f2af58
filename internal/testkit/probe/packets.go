package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

const patience = 3 * time.Second // no attempt takes longer

// tcp ADDR [TEXT] connects, sends the text and reads the first of what comes back. Success is a connection.
func tcp(args []string) (map[string]any, error) {
	if len(args) == 0 {
		return usage("tcp ADDR [TEXT]")
	}
	start := time.Now()
	c, err := net.DialTimeout("tcp", args[0], patience)
	data := map[string]any{"addr": args[0], "ms": time.Since(start).Milliseconds()}
	if err != nil {
		return data, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if len(args) > 1 {
		_, err := io.WriteString(c, unescape(args[1]))
		data["wrote"] = err == nil
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	data["reply"], data["answer_ms"] = string(b[:n]), time.Since(start).Milliseconds() // an answer, or the end
	if err != nil {
		data["read_error"] = err.Error()
	}
	return data, nil
}

// udp ADDR TEXT sends a datagram, twice so that an ICMP refusal of the first shows, and waits for an answer. Success is an answer.
func udp(args []string) (map[string]any, error) {
	if len(args) != 2 {
		return usage("udp ADDR TEXT")
	}
	data := map[string]any{"addr": args[0]}
	start := time.Now()
	c, err := net.DialTimeout("udp", args[0], patience)
	if err != nil {
		return data, err
	}
	defer c.Close()
	_ = c.SetDeadline(start.Add(patience))
	text := unescape(args[1])
	if len(text) < 8 {
		text += strings.Repeat(".", 8-len(text))
	}
	_, first := io.WriteString(c, text)
	_, second := io.WriteString(c, text)
	data["sent"] = first == nil && second == nil
	if err := errors.Join(first, second); err != nil { // the refusal of the first, told to the second
		data["ms"] = time.Since(start).Milliseconds()
		return data, err
	}
	b := make([]byte, 2048)
	n, err := c.Read(b)
	data["ms"] = time.Since(start).Milliseconds()
	if err != nil {
		return data, err
	}
	data["reply"] = string(b[:n])
	return data, nil
}

// icmp ADDR [TEXT] sends an echo request from a ping socket and, failing that, from a raw one. Success is an answer.
func icmp(args []string) (map[string]any, error) {
	if len(args) == 0 {
		return usage("icmp ADDR [TEXT]")
	}
	addr, err := netip.ParseAddr(args[0])
	if err != nil {
		return nil, err
	}
	payload := "postern"
	if len(args) > 1 {
		payload = args[1]
	}
	family, proto, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	if addr.Is6() {
		family, proto, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
	}
	data := map[string]any{"addr": args[0]}
	var fd int
	for _, typ := range []int{unix.SOCK_DGRAM, unix.SOCK_RAW} {
		if fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto); err == nil {
			break
		}
		data["socket_error"] = errno(err)
	}
	if err != nil {
		return data, err
	}
	defer unix.Close(fd)
	msg := append([]byte{kind, 0, 0, 0, 0x12, 0x34, 0, 1}, payload...)
	binary.BigEndian.PutUint16(msg[2:], checksum(msg))
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: addr.Unmap().As4()}
	if addr.Is6() {
		to = &unix.SockaddrInet6{Addr: addr.As16()}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return data, err
	}
	if err := unix.Sendto(fd, msg, 0, to); err != nil {
		return data, err
	}
	_, _, err = unix.Recvfrom(fd, make([]byte, 2048), 0)
	return data, err
}

func checksum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// unixSocket PATH connects to a Unix socket, "@name" for an abstract one, as a stream and as datagrams.
func unixSocket(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("unix PATH")
	}
	data := map[string]any{"path": args[0]}
	var errs []error
	for _, network := range []string{"unix", "unixgram", "unixpacket"} {
		c, err := net.DialTimeout(network, args[0], patience)
		if err == nil {
			data["network"] = network
			_, _ = c.Write([]byte("probe\n"))
			return data, c.Close()
		}
		errs = append(errs, err)
	}
	return data, errors.Join(errs...)
}

// loop SECONDS TEXT ADDR… connects to every address over and over, TCP and UDP, and counts what got through.
func loop(args []string) (map[string]any, error) {
	var seconds float64
	if len(args) < 3 {
		return usage("loop SECONDS TEXT ADDR…")
	}
	if _, err := fmt.Sscan(args[0], &seconds); err != nil {
		return nil, err
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	tries, connected := 0, 0
	for time.Now().Before(end) {
		for _, addr := range args[2:] {
			tries++
			if c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond); err == nil {
				connected++
				_, _ = io.WriteString(c, args[1])
				_ = c.Close()
			}
			if c, err := net.Dial("udp", addr); err == nil {
				_, _ = io.WriteString(c, args[1])
				_ = c.Close()
			}
		}
		time.Sleep(time.Millisecond)
	}
	return map[string]any{"tries": tries, "connected": connected}, nil
}

// dns SERVER NAME TYPE [tcp] asks a server for a name. Success is an answer of any kind; data says which.
func dns(args []string) (map[string]any, error) {
	if len(args) < 3 {
		return usage("dns SERVER NAME TYPE [tcp]")
	}
	types := map[string]dnsmessage.Type{"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "NULL": 10, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33, "SVCB": 64, "HTTPS": 65, "ANY": 255, "PRIVATE": 65399}
	typ, ok := types[strings.ToUpper(args[2])]
	if !ok {
		return usage("dns: a type like A, AAAA, TXT")
	}
	name, err := dnsmessage.NewName(strings.TrimSuffix(args[1], ".") + ".")
	if err != nil {
		return nil, err
	}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: name, Type: typ, Class: dnsmessage.ClassINET}}}
	packed, err := query.Pack()
	if err != nil {
		return nil, err
	}
	network := "udp"
	if len(args) > 3 {
		network = args[3]
	}
	data := map[string]any{"server": args[0], "name": args[1], "type": args[2]}
	start := time.Now()
	answer, err := exchange(network, args[0], packed)
	data["ms"] = time.Since(start).Milliseconds()
	if err != nil {
		return data, err
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return data, err
	}
	data["rcode"] = m.RCode.String()
	answers := []string{}
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			answers = append(answers, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			answers = append(answers, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.PTRResource:
			answers = append(answers, b.PTR.String())
		default:
			answers = append(answers, r.Header.Type.String())
		}
	}
	data["answers"] = answers
	return data, nil
}

func exchange(network, server string, query []byte) ([]byte, error) {
	c, err := net.DialTimeout(network, server, patience)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	if network != "tcp" {
		n, err := c.Read(b)
		return b[:n], err
	}
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return nil, err
	}
	b = b[:binary.BigEndian.Uint16(b)]
	_, err = io.ReadFull(c, b)
	return b, err
}

// listen serves on the sandbox's own loopback and connects to itself: the sandbox's servers must keep working.
func listen([]string) (map[string]any, error) {
	data := map[string]any{}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "127.0.0.53:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return data, fmt.Errorf("listen %s: %w", addr, err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, "self")
				_ = c.Close()
			}
		}()
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err != nil {
			return data, err
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		b, err := io.ReadAll(io.LimitReader(c, 16))
		_ = c.Close()
		_ = l.Close()
		if err != nil || string(b) != "self" {
			return data, fmt.Errorf("%s answered %q: %w", l.Addr(), b, errors.Join(err, os.ErrInvalid))
		}
		data[addr] = true
	}
	return data, nil
}

// unescape reads \r, \n, \t, \0 and \xHH in an argument.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'r':
			b.WriteByte('\r')
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '0':
			b.WriteByte(0)
		case 'x':
			var c byte
			if i+2 < len(s) {
				if _, err := fmt.Sscanf(s[i+1:i+3], "%02x", &c); err == nil {
					i += 2
				}
			}
			b.WriteByte(c)
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
