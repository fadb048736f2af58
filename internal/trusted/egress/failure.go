package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"

	"postern/internal/core/gate"
)

// fail makes a failure. The detail may be shown to the sandbox; err is for the host's log alone.
func fail(r gate.Reason, detail string, err error) *gate.Failure {
	return &gate.Failure{Reason: r, Detail: detail, Err: err}
}

// errEnded is how a session that was closed answers, whatever was under way.
func errEnded() error { return fail(gate.ReasonSessionEnded, "", nil) }

// handshakeFailure explains why TLS with the upstream did not come about. Nothing that the upstream wrote gets into the detail.
func handshakeFailure(err error) error {
	var (
		verify  *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case timedOut(err):
		return fail(gate.ReasonUpstreamTimeout, "the TLS handshake took too long", err)
	case errors.As(err, &unknown):
		return fail(gate.ReasonUpstreamTLS, "the certificate is signed by an authority that the host does not trust", err)
	case errors.As(err, &name):
		return fail(gate.ReasonUpstreamTLS, "the certificate is for another name", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fail(gate.ReasonUpstreamTLS, "the certificate has expired or is not valid yet", err)
	case errors.As(err, &verify):
		return fail(gate.ReasonUpstreamTLS, "", err)
	}
	return fail(gate.ReasonUpstream, "the TLS handshake failed", err)
}

// exchangeFailure sorts what the transport or a body ended with. ctx is the request's.
func exchangeFailure(ctx context.Context, err error) error {
	var f *gate.Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail(gate.ReasonUpstreamTimeout, "", err)
	case ctx.Err() != nil:
		return fail(gate.ReasonUpstream, "the request was given up", err)
	case timedOut(err):
		return fail(gate.ReasonUpstreamTimeout, "", err)
	}
	return fail(gate.ReasonUpstream, "", err)
}

func timedOut(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// body is an answer's body whose errors are failures: what net/http says holds addresses.
type body struct {
	io.ReadCloser
	s    *Session
	ctx  context.Context // the request's, which the answer's life is bound to
	done func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.s.ended(exchangeFailure(b.ctx, err))
	}
	return n, err
}

func (b *body) Close() error {
	b.done()
	return b.ReadCloser.Close()
}

// duplex is the body of a 101: the connection itself.
type duplex struct {
	body
	w io.Writer
}

func (d *duplex) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	if err != nil {
		err = d.s.ended(exchangeFailure(d.ctx, err))
	}
	return n, err
}

// CloseWrite half-closes where the connection can.
func (d *duplex) CloseWrite() error {
	if c, ok := d.w.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
