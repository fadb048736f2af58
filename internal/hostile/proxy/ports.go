package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

// Minter makes the certificates that the sandbox's TLS clients see.
type Minter interface {
	// Leaf is the certificate of an allowed host: cached, minted once however many ask.
	Leaf(h gate.Host) (*tls.Certificate, error)
	// RefusalLeaf is the certificate that delivers a refusal for h. It comes from a small budget of its own and is not kept;
	// an error means the budget is spent and the connection is closed without explanation.
	RefusalLeaf(h gate.Host) (*tls.Certificate, error)
}

// Upstream carries what a permit allows to the world. It alone dials and alone holds credentials.
type Upstream interface {
	// Ready checks that the credential the permit injects can be had now and returns its receipt, before anything is sent.
	// The error is a *gate.Failure.
	Ready(ctx context.Context, p policy.Permit) (record.Receipt, error)
	// RoundTrip sends r to the permit's destination with the slot's credential (the zero Slot: none) and returns the scrubbed answer.
	// The request's own host is ignored. Redirects are not followed. For an allowed upgrade the response is a 101 whose Body is an io.ReadWriteCloser.
	// The error is a *gate.Failure.
	RoundTrip(p policy.Permit, slot policy.Slot, r *http.Request) (*http.Response, error)
	// Tunnel opens a connection to the permit's destination for bytes that are not read. The error is a *gate.Failure.
	Tunnel(ctx context.Context, p policy.Permit) (*net.TCPConn, error)
}

// Recorder writes the audit log.
type Recorder interface {
	// Commit returns when the record is durable, or an error; on an error nothing may happen.
	Commit(ctx context.Context, r *record.Record) error
	// Append queues the record; an error means that the log is broken and no new work may start.
	Append(r *record.Record) error
}

// Resolver turns the synthetic addresses that the session's DNS gave out back into names.
type Resolver interface {
	// Lookup is the name behind an address; false when the address was never given out.
	Lookup(addr netip.Addr) (gate.Host, bool)
}
