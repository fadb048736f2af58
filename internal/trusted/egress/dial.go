package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"postern/internal/core/gate"
)

const (
	// maxAnswers bounds how much of a resolver's answer is looked at, and maxTried how many addresses are dialled.
	maxAnswers = 64
	maxTried   = 8
	// stagger is how long an address may stay silent before the next is tried beside it (RFC 8305 §5).
	stagger = 250 * time.Millisecond
)

// reach opens a byte stream to the target: straight to its fixed address, through the proxy, or to an address that was resolved and judged.
func (e *Egress) reach(ctx context.Context, to target) (net.Conn, error) {
	if up, ok := e.Upstreams[to.Authority]; ok {
		return e.dialAny(ctx, []netip.AddrPort{up.Address})
	}
	if e.proxy != nil {
		return e.throughProxy(ctx, to)
	}
	addrs, err := e.resolve(ctx, to)
	if err != nil {
		return nil, err
	}
	return e.dialAny(ctx, addrs)
}

// resolve looks the target up and keeps the addresses that may be dialled. Each is judged in the form in which it will be dialled.
func (e *Egress) resolve(ctx context.Context, to target) ([]netip.AddrPort, error) {
	answers, err := e.lookup(ctx, to.Host.String())
	if err != nil {
		return nil, err
	}
	own, err := e.Own()
	if err != nil {
		return nil, fail(gate.ReasonAddressGuard, "the host's own addresses are not known", err)
	}
	var keep []netip.AddrPort
	for _, a := range answers {
		a = a.Unmap() // resolvers may give IPv4 answers in IPv6's form
		_, special := Classify(a)
		if (special || slices.Contains(own, a)) && !(to.inside.IsValid() && to.inside.Contains(a)) {
			continue
		}
		if ap := netip.AddrPortFrom(a, uint16(to.Port)); !slices.Contains(keep, ap) {
			keep = append(keep, ap)
		}
	}
	if len(keep) == 0 {
		return nil, fail(gate.ReasonAddressGuard, "", nil)
	}
	keep = interleave(keep)
	return keep[:min(len(keep), maxTried)], nil
}

func (e *Egress) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, e.ResolveTime)
	defer cancel()
	answers, err := e.Resolver.LookupNetIP(ctx, "ip", host)
	var dns *net.DNSError
	switch {
	case err == nil && len(answers) > 0:
		return answers[:min(len(answers), maxAnswers)], nil
	case err == nil || errors.As(err, &dns) && dns.IsNotFound:
		return nil, fail(gate.ReasonResolve, "the name has no address", err)
	case timedOut(err):
		return nil, fail(gate.ReasonResolve, "the resolver did not answer in time", err)
	}
	return nil, fail(gate.ReasonResolve, "", err)
}

// interleave alternates the address families, beginning with the resolver's first choice (RFC 8305 §4).
func interleave(addrs []netip.AddrPort) []netip.AddrPort {
	var first, second []netip.AddrPort
	for _, a := range addrs {
		if a.Addr().Is4() == addrs[0].Addr().Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	mixed := make([]netip.AddrPort, 0, len(addrs))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			mixed = append(mixed, first[i])
		}
		if i < len(second) {
			mixed = append(mixed, second[i])
		}
	}
	return mixed
}

// dialAny connects to the first of the addresses that answers. A later one is tried when an earlier one failed or stayed silent
// for a moment. All attempts have ended when it returns.
func (e *Egress) dialAny(ctx context.Context, addrs []netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, e.DialTime)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	started, pending := 0, 0
	next := func() {
		to := addrs[started]
		started++
		pending++
		go func() {
			c, err := e.Dial(ctx, to)
			results <- result{c, err}
		}()
	}
	next()
	silent := time.NewTimer(stagger)
	defer silent.Stop()
	var won net.Conn
	var failed error
	for pending > 0 {
		select {
		case r := <-results:
			pending--
			switch {
			case r.err == nil && won == nil:
				won = r.conn
				cancel()
			case r.err == nil:
				_ = r.conn.Close() // lost the race
			case won == nil && failed == nil:
				failed = r.err
			}
		case <-silent.C:
		}
		if won == nil && started < len(addrs) && ctx.Err() == nil {
			next()
			silent.Reset(stagger)
		}
	}
	if won != nil {
		return won, nil
	}
	if timedOut(failed) || ctx.Err() != nil {
		return nil, fail(gate.ReasonDial, "no address answered in time", failed)
	}
	return nil, fail(gate.ReasonDial, "", failed)
}

// secure makes TLS with the permit's host on conn, and closes conn when it fails. The size of a hostile handshake is bounded
// by crypto/tls (256 KiB of certificates, RSA keys of 8,192 bits) and crypto/x509 (100 signature checks), its time by TLSTime.
func (e *Egress) secure(ctx context.Context, conn net.Conn, to gate.Authority, protocols []string) (*tls.Conn, error) {
	roots := e.Roots
	if up := e.Upstreams[to]; up.Roots != nil {
		roots = up.Roots
	}
	ctx, cancel := context.WithTimeout(ctx, e.TLSTime)
	defer cancel()
	// No session cache: a resumed session skips the certificate check, and pooled connections make resumption rare.
	t := tls.Client(conn, &tls.Config{ServerName: to.Host.String(), RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: protocols})
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, handshakeFailure(err)
	}
	return t, nil
}
