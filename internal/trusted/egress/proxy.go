package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/secret"
)

// maxProxyHead bounds a proxy's answer to CONNECT, in bytes.
const maxProxyHead = 16 << 10

// proxy is a corporate proxy.
type proxy struct {
	secure     bool
	host       string // as in its certificate
	addr       netip.Addr
	port       gate.Port
	credential secret.Value
}

func newProxy(u *url.URL, credential secret.Value) (*proxy, error) {
	p := &proxy{secure: u.Scheme == "https", host: u.Hostname(), credential: credential}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("its scheme is neither http nor https")
	case u.User != nil:
		return nil, errors.New("its password belongs into a credential, not into its URL")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("only scheme, host and port")
	}
	var err error
	switch {
	case u.Port() != "":
		if p.port, err = gate.ParsePort(u.Port()); err != nil {
			return nil, err
		}
	case p.secure:
		p.port = gate.HTTPS.DefaultPort()
	default:
		p.port = gate.HTTP.DefaultPort()
	}
	if p.addr, err = netip.ParseAddr(p.host); err == nil {
		return p, nil
	}
	h, err := gate.ParseHost(p.host)
	p.host = h.String()
	return p, err
}

// throughProxy opens a tunnel through the corporate proxy (RFC 9110 §9.3.6). The proxy is given the name and resolves it.
func (e *Egress) throughProxy(ctx context.Context, to target) (net.Conn, error) {
	addrs := []netip.AddrPort{netip.AddrPortFrom(e.proxy.addr, uint16(e.proxy.port))}
	if !e.proxy.addr.IsValid() {
		found, err := e.lookup(ctx, e.proxy.host)
		if err != nil {
			return nil, fail(gate.ReasonDial, "the corporate proxy's name could not be resolved", err)
		}
		addrs = addrs[:0]
		for _, a := range found[:min(len(found), maxTried)] {
			addrs = append(addrs, netip.AddrPortFrom(a.Unmap(), uint16(e.proxy.port)))
		}
	}
	conn, err := e.dialAny(ctx, addrs)
	if err != nil {
		return nil, fail(gate.ReasonDial, "the corporate proxy could not be reached", err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.TLSTime)
	defer cancel()
	if e.proxy.secure {
		t := tls.Client(conn, &tls.Config{ServerName: e.proxy.host, RootCAs: e.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		if err := t.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fail(gate.ReasonDial, "TLS with the corporate proxy failed", err)
		}
		conn = t
	}
	if err := e.connect(ctx, conn, to.Authority); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect asks for a tunnel and reads the answer, within ctx.
func (e *Egress) connect(ctx context.Context, conn net.Conn, to gate.Authority) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to.String()}, Host: to.String(), Header: http.Header{"User-Agent": {""}}}
	if !e.proxy.credential.IsZero() {
		err := e.proxy.credential.Use(func(b []byte) error {
			r.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString(b))
			return nil
		})
		if err != nil {
			return fail(gate.ReasonDial, "the corporate proxy's credential is gone", err)
		}
	}
	if err := r.Write(conn); err != nil {
		return fail(gate.ReasonDial, "the corporate proxy broke off", err)
	}
	br := bufio.NewReader(io.LimitReader(conn, maxProxyHead))
	resp, err := http.ReadResponse(br, r)
	switch {
	case err != nil:
		return fail(gate.ReasonDial, "the corporate proxy did not answer as a proxy does", err)
	case resp.StatusCode == http.StatusProxyAuthRequired:
		return fail(gate.ReasonDial, "the corporate proxy asks for a password", nil)
	case resp.StatusCode != http.StatusOK:
		return fail(gate.ReasonDial, "the corporate proxy refuses this host", nil)
	case br.Buffered() > 0:
		return fail(gate.ReasonDial, "the corporate proxy sent bytes that nobody asked for", nil)
	case !stop():
		return fail(gate.ReasonDial, "the corporate proxy did not answer in time", ctx.Err())
	}
	return nil
}
