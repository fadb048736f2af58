// Package egress is the only dialer. It goes where a permit says and nowhere else.
//
// A connection to the world is made in one order: take host, port and scheme from the permit; resolve the host; judge every address of
// the answer; dial one that was judged, by address; verify TLS for the permit's host; only then write a byte. Redirects are
// answers like others. Connections are pooled per session and per credential and never shared across either.
//
// Two settings replace a step, and are announced by whoever makes them: Upstreams fixes a name's address (so a private endpoint
// or a test server can be reached), and Proxy hands the name to a corporate proxy, which then resolves it: the address guard cannot
// see what a proxy dials. TLS is verified for the permit's host in every case.
//
// Nothing here reads the environment: no HTTP_PROXY, no SSL_CERT_FILE, no SSLKEYLOGFILE.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/secret"
)

// Resolver finds the addresses of a host.
type Resolver interface {
	// LookupNetIP is net.Resolver's. The host is canonical and absolute: no search list applies to it.
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Upstream fixes where a name is reached. It is the only way that loopback is ever dialled.
type Upstream struct {
	Address netip.AddrPort
	Roots   *x509.CertPool // nil: Config.Roots
}

// Config says how the world is reached. Every field may be zero.
type Config struct {
	Roots     *x509.CertPool              // nil: the system's, read once
	Resolver  Resolver                    // nil: Go's own, with the host's resolv.conf and hosts file
	Upstreams map[gate.Authority]Upstream // names with a fixed address; they bypass Resolver, the address guard and Proxy

	Proxy           *url.URL     // corporate proxy for all else, http or https, without userinfo; its own address may be private
	ProxyCredential secret.Value // "user:password" for the proxy; zero: none

	ResolveTime time.Duration // of one lookup; zero: 10 s
	DialTime    time.Duration // until one of a host's addresses has answered; zero: 10 s
	TLSTime     time.Duration // of a TLS handshake, and of a proxy's answer to CONNECT; zero: 10 s
	AnswerTime  time.Duration // until the head of an answer, which a model may think about for long; zero: 10 min
	IdleTime    time.Duration // an idle connection is kept; zero: 55 s, below the 60 s of common load balancers

	MaxConns  int // open connections of one session; zero: 512
	MaxTotal  int // of all sessions; zero: 16,384
	MaxHeader int // bytes of an answer's head; zero: 256 KiB

	// Dial opens a TCP connection to exactly this address; nil: the network. Own lists the host's own addresses, which a public name
	// must not lead to; nil: those of its interfaces.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	Own  func() ([]netip.Addr, error)
}

// Egress reaches the world. It holds no connection itself: sessions do.
type Egress struct {
	Config
	proxy *proxy        // nil: none
	slots chan struct{} // one for each open connection
}

// New checks the configuration and reads the root certificates.
func New(c Config) (*Egress, error) {
	if c.Roots == nil {
		roots, err := systemRoots()
		if err != nil {
			return nil, fmt.Errorf("egress: %w", err)
		}
		c.Roots = roots
	}
	if c.Resolver == nil {
		c.Resolver = absolute{&net.Resolver{PreferGo: true}}
	}
	if c.Own == nil {
		c.Own = ownAddresses
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	for a, u := range c.Upstreams {
		if a.Host.IsZero() || a.Port == 0 || !u.Address.IsValid() || u.Address.Port() == 0 {
			return nil, fmt.Errorf("egress: upstream %s: needs a host, and an address with a port", a)
		}
	}
	if err := c.defaults(); err != nil {
		return nil, err
	}
	e := &Egress{Config: c, slots: make(chan struct{}, c.MaxTotal)}
	if c.Proxy != nil {
		var err error
		if e.proxy, err = newProxy(c.Proxy, c.ProxyCredential); err != nil {
			return nil, fmt.Errorf("egress: proxy: %w", err)
		}
	}
	return e, nil
}

func (c *Config) defaults() error {
	for _, d := range []struct {
		field *time.Duration
		zero  time.Duration
	}{
		{&c.ResolveTime, 10 * time.Second}, {&c.DialTime, 10 * time.Second}, {&c.TLSTime, 10 * time.Second},
		{&c.AnswerTime, 10 * time.Minute}, {&c.IdleTime, 55 * time.Second},
	} {
		if *d.field < 0 {
			return errors.New("egress: a negative time")
		}
		if *d.field == 0 {
			*d.field = d.zero
		}
	}
	for _, d := range []struct {
		field *int
		zero  int
	}{{&c.MaxConns, 512}, {&c.MaxTotal, 16 << 10}, {&c.MaxHeader, 256 << 10}} {
		if *d.field < 0 {
			return errors.New("egress: a negative bound")
		}
		if *d.field == 0 {
			*d.field = d.zero
		}
	}
	return nil
}

// absolute asks for names as they stand: "host" would be tried below every domain of resolv.conf's search list first, and
// whoever owns one of those would be asked for the credential's host.
type absolute struct{ r Resolver }

func (a absolute) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return a.r.LookupNetIP(ctx, network, host+".")
}

func dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	// Keep-alive probes after 15 s, as Go does by default: a dead peer is noticed without a byte being owed.
	c, err := new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		return nil, err // not a nil *TCPConn in an interface
	}
	return c, nil
}

func ownAddresses() ([]netip.Addr, error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := make([]netip.Addr, 0, len(nets))
	for _, n := range nets {
		if ipnet, ok := n.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(ipnet.IP); ok {
				own = append(own, a.Unmap())
			}
		}
	}
	return own, nil
}

// target is a permit's destination, as far as dialling needs it.
type target struct {
	gate.Authority
	inside netip.Prefix // special addresses that the rule admits; invalid: none
}

// destination checks a permit and takes the destination out of it.
func (s *Session) destination(p policy.Permit, kind policy.ActionKind) (target, error) {
	switch {
	case !p.Valid() || p.Host().IsZero() || p.Port() == 0:
		return target{}, fail(gate.ReasonBug, "no permit", nil)
	case p.Session() != s.id:
		return target{}, fail(gate.ReasonBug, "a permit of another session", nil)
	case p.Kind() != kind:
		return target{}, fail(gate.ReasonBug, "a permit for another purpose", nil)
	case p.Scheme() != gate.HTTPS && p.Scheme() != gate.HTTP:
		return target{}, fail(gate.ReasonSchemeNotListed, "", nil)
	}
	return target{gate.Authority{Host: p.Host(), Port: p.Port()}, p.Address()}, nil
}
