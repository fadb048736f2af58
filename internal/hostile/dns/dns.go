// Package dns answers a sandbox's name queries with addresses that stand for names, and never asks anyone.
//
// Every well-formed host name gets an IPv4 address of 198.18.0.0/15 (RFC 2544) and an IPv6 address of a /64 of fd00::/8 (RFC 4193),
// its own for the session. When a connection to one of them arrives, the address says which name the client had asked for: a name
// that policy refuses can be refused over HTTP with a reason, and an allowed one is resolved outside, for the allowed request alone.
// So no query carries anything out: there is no upstream.
//
//	question                            answer
//	A, AAAA of a host name              its synthetic address, TTL 60 s
//	A, AAAA of localhost, *.localhost   127.0.0.1, ::1
//	PTR of an address given out         the name (loopback: localhost); of any other: NXDOMAIN
//	HTTPS, SVCB and every other type    NODATA: NOERROR without records. Clients go on with A and AAAA, without ECH or HTTP/3
//	a name that gate.ParseHost refuses  NXDOMAIN
//	beyond the rate, or a full table    REFUSED
//	class other than IN                 REFUSED
//	opcode other than QUERY             NOTIMP
//	not one question; bad grammar       FORMERR
//	EDNS version other than 0           BADVERS
//	a response; fewer than 12 bytes     nothing
//
// Every answer fits in 512 bytes, so none is truncated. Wire format: RFC 1035 §4; TCP: RFC 7766, each message after its length in
// two bytes; EDNS: RFC 6891.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"postern/internal/core/gate"
)

// Bounds of the server. They are per Serve, that is per sandbox.
const (
	maxMessage     = 4 << 10 // bytes of one query
	packetWorkers  = 2       // goroutines reading one UDP socket
	maxStreams     = 64      // TCP connections at once; one more is closed
	maxPerStream   = 100     // queries on one TCP connection
	streamIdle     = 10 * time.Second
	restAfterLimit = 2 * time.Millisecond // a worker's pause after a query beyond the rate: a flood fills the socket, not the processor
	restAfterError = 20 * time.Millisecond
)

// Config is what a session's name server needs.
type Config struct {
	// Seed makes the session's addresses its own: the IPv6 prefix and where in 198.18.0.0/15 it begins. Random, not secret.
	Seed [32]byte
	// Capacity is how many names are remembered at once; 0 means 65,000, which is also the most. A name takes at most 400 bytes.
	Capacity int
	// Rest is how long a name must not have been asked for, nor connected to, before its address may ever stand for another; 0 means
	// 10 minutes, ten times the TTL. While no name has rested that long in a full table, new names are refused.
	Rest time.Duration
	// Allow is asked for every query: gate.ReasonNone admits it, any other reason is answered REFUSED. Required.
	Allow func(now time.Time) gate.Reason
	// Observe is told of every query that was understood, from several goroutines. It must not block. Nil: nobody is.
	Observe func(Query)
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Query is one question and what became of it.
type Query struct {
	Name   string      // as asked, without the trailing dot, in the client's case; may hold any byte, at most 255
	Host   gate.Host   // its canonical form; zero when it has none
	Type   uint16      // RFC 1035 §3.2.2: 1 is A, 28 is AAAA
	Answer netip.Addr  // the address that was answered; invalid when none was
	Reason gate.Reason // why the answer is an error, gate.ReasonNone when it is not
}

// Server is a session's name server. It is safe for concurrent use.
type Server struct {
	names   *Names
	allow   func(time.Time) gate.Reason
	observe func(Query)
	now     func() time.Time
}

// New makes a name server that has given out no address yet.
func New(c Config) (*Server, error) {
	if c.Allow == nil {
		return nil, errors.New("dns: no Allow: every query would be unlimited")
	}
	names, err := newNames(c)
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	s := &Server{names: names, allow: c.Allow, observe: c.Observe, now: names.now}
	if s.observe == nil {
		s.observe = func(Query) {}
	}
	return s, nil
}

// Names is the server's table of names and addresses.
func (s *Server) Names() *Names { return s.names }

// Serve answers on the sockets until owner ends or one of them fails, closes them all, and returns when nothing runs any more.
// It returns nil when owner ended. A Server can serve once or several times.
func (s *Server) Serve(owner context.Context, packets []net.PacketConn, streams []net.Listener) error {
	ctx, cancel := context.WithCancelCause(owner)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, p := range packets {
		for range packetWorkers {
			running.Go(func() {
				if err := s.servePackets(ctx, p); err != nil {
					cancel(err)
				}
			})
		}
	}
	slots := make(chan struct{}, maxStreams)
	for _, l := range streams {
		running.Go(func() {
			if err := s.serveStreams(ctx, l, slots, &running); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	for _, p := range packets {
		p.Close()
	}
	for _, l := range streams {
		l.Close()
	}
	running.Wait()
	if owner.Err() != nil {
		return nil
	}
	return fmt.Errorf("dns: %w", context.Cause(ctx))
}

// servePackets answers datagrams one after the other: two buffers and no goroutine per packet.
func (s *Server) servePackets(ctx context.Context, p net.PacketConn) error {
	in, out := make([]byte, maxMessage+1), make([]byte, 0, 512)
	for {
		n, from, err := p.ReadFrom(in)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read a query: %w", err)
		case err != nil:
			pause(ctx, restAfterError)
			continue
		case n > maxMessage:
			continue
		}
		reply, limited := s.answer(out, in[:n])
		if reply != nil {
			_, _ = p.WriteTo(reply, from) // a client that is gone needs no answer
		}
		if limited {
			pause(ctx, restAfterLimit)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
