// Package h1 holds a client's HTTP/1.x requests to a strict grammar before net/http's server sees a byte of them.
//
// A Conn sits between the connection (TLS or TCP) and the server. It reads each request head as a whole, follows the body's framing
// to the next head, and passes bytes on unchanged. One reading of a request is left: where RFC 9112 tolerates a variant that
// some server reads differently (bare LF, folded lines, repeated or padded lengths, chunk extensions, …), the request is refused.
//
//	head            held until it is whole and in order; a fault replaces it (see Violation)
//	chunked body    its head is held further, until the first chunk-size line is in order too, so that a torn body
//	                reaches no upstream; not so after Expect: 100-continue, where the client waits for an answer first
//	body            passed as it comes; a fault in chunk framing makes Read fail, so the body never ends well
//	next head       and so on: pipelined requests are judged one by one
//
// Deadlines. The server's own SetReadDeadline calls are passed down (http.Server.IdleTimeout and ReadHeaderTimeout work as
// ever and bound the wait for the first byte of a head). The filter adds two of its own, and the earlier one wins: HeaderTime, from
// the first byte of a head to its last, and Progress, between two reads of a body. http.Server.MaxHeaderBytes must be at least
// Limits.Header, and http.Request.TLS is nil behind the filter.
package h1

import (
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
)

// Limits bound what one request may send before it is judged. Zero fields take the defaults given with them.
type Limits struct {
	Header       int           // bytes of one request head; 64 KiB
	HeaderTime   time.Duration // from the first byte of a head to its last; 10 s
	Progress     time.Duration // without a byte of a body that is being read, or of a first chunk; 5 min
	AllowConnect bool          // CONNECT is for a connection that speaks to a proxy; elsewhere it is refused
}

const (
	defaultHeader     = 64 << 10
	defaultHeaderTime = 10 * time.Second
	defaultProgress   = 5 * time.Minute

	maxRequestLine = 16<<10 + 64 // gate.MaxTarget and what stands around it
	maxFields      = 200
	maxMethod      = 32

	firstBuffer = 4 << 10
	keptBuffer  = 16 << 10  // a larger buffer is let go once it is empty
	chunkSlack  = 64        // room for the first chunk-size line behind a full head
	drainLimit  = 256 << 10 // what is read and dropped after a refusal
	lingerTime  = 500 * time.Millisecond
	lingerLimit = 64 << 10
)

// Violation is where and how a client broke the grammar.
type Violation struct {
	Reason gate.Reason
	Detail string // one clause for a person; never contains the input
	Offset int64  // bytes of the connection before the fault

	inBody bool
}

func (v *Violation) Error() string {
	return "request: " + v.Detail + " at byte " + strconv.FormatInt(v.Offset, 10)
}

// violationMethod is the method of the request that stands in for one with a faulty head. A client that sends it commits
// a violation, so its presence behind the filter proves that the filter wrote it.
const violationMethod = "POSTERN-VIOLATION"

const violationHead = violationMethod + " / HTTP/1.1\r\nHost: postern.invalid\r\nConnection: close\r\n\r\n"

type phase uint8

const (
	inHead      phase = iota
	inFirst           // a chunked head is whole; its first size line is awaited
	inLength          // a body of known length
	inChunks          // a chunked body
	refused           // a head was at fault: the stand-in is the last request
	broken            // a body was at fault: Read fails
	surrendered       // Detach was called
)

// Conn is the filter. Read, like any server's connection's, is called by one goroutine at a time; the other methods by any.
type Conn struct {
	net.Conn
	limits Limits

	phase phase
	buf   []byte    // bytes from below, not yet all delivered
	r, ok int       // buf[r:ok] is judged and deliverable, buf[ok:] is held
	base  int64     // bytes of the connection before buf[0]
	head  head      // of the request that begins at buf[ok]
	hlen  int       // inFirst: length of the held head
	left  int64     // inLength: bytes of the body to come
	body  chunks    // inChunks
	due   time.Time // until the held head or first chunk must be whole; zero when nothing is held
	drops int       // refused: bytes dropped

	connect bool   // a CONNECT was read: what follows may be no HTTP at all
	held    []byte // refused, behind a CONNECT: what the stand-in stands for, should Detach be called

	violation atomic.Pointer[Violation]

	mu    sync.Mutex // guards the two deadlines and their order of arrival below
	outer time.Time  // the server's
	own   time.Time  // the filter's; written by Read alone
}

// NewConn makes a filter over c.
func NewConn(c net.Conn, l Limits) *Conn {
	if l.Header <= 0 {
		l.Header = defaultHeader
	}
	if l.HeaderTime <= 0 {
		l.HeaderTime = defaultHeaderTime
	}
	if l.Progress <= 0 {
		l.Progress = defaultProgress
	}
	return &Conn{Conn: c, limits: l}
}

// Violation is the fault that a request stands for, given the method the server read for it; nil for a client's own request.
// A handler calls it first and refuses with what it returns. The connection closes after the answer.
func (c *Conn) Violation(method string) *Violation {
	if method != violationMethod {
		return nil
	}
	return c.violation.Load()
}

// BodyViolation is the fault that made a read of a request's body fail, nil when the failure had another cause. A handler asks after
// an error from Request.Body; net/http rewords some of those errors, so that errors.As alone would miss a fault in a trailer.
func (c *Conn) BodyViolation() *Violation {
	if v := c.violation.Load(); v != nil && v.inBody {
		return v
	}
	return nil
}

// Read delivers judged bytes.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if c.r < c.ok {
			return c.deliver(p), nil
		}
		switch c.phase {
		case refused:
			return 0, c.drain()
		case broken:
			return 0, c.violation.Load()
		case surrendered:
			return 0, net.ErrClosed
		case inLength, inChunks: // nothing is held in these, so buf is empty
			return c.direct(p)
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
		c.judge()
	}
}

func (c *Conn) deliver(p []byte) int {
	n := copy(p, c.buf[c.r:c.ok])
	if c.r += n; c.r == len(c.buf) {
		c.base += int64(c.r)
		c.r, c.ok, c.buf = 0, 0, c.buf[:0]
		if cap(c.buf) > keptBuffer {
			c.buf = nil
		}
	}
	return n
}

// fill reads once behind what is held of a head.
func (c *Conn) fill() error {
	c.room()
	if err := c.setOwn(c.due); err != nil {
		return err
	}
	n, err := c.Conn.Read(c.buf[len(c.buf):cap(c.buf)])
	c.buf = c.buf[:len(c.buf)+n]
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.ErrNoProgress
	case c.expired(err):
		c.refuse(fault{gate.ReasonLimitTime, "the head or the first chunk was not complete in time", len(c.buf) - c.ok})
		return nil
	}
	return err
}

// room makes sure that buf has free space. Judge refuses a head before it could need more than the largest buffer.
func (c *Conn) room() {
	if c.r > 0 {
		n := copy(c.buf, c.buf[c.r:])
		c.base += int64(c.r)
		c.buf, c.ok, c.r = c.buf[:n], c.ok-c.r, 0
	}
	if len(c.buf) < cap(c.buf) {
		return
	}
	size := min(max(firstBuffer, 2*cap(c.buf)), max(c.limits.Header+chunkSlack, len(c.buf)+chunkSlack))
	grown := make([]byte, len(c.buf), size)
	copy(grown, c.buf)
	c.buf = grown
}

// judge goes through what was read and moves ok forward as far as it is in order.
func (c *Conn) judge() {
	for c.ok < len(c.buf) {
		rest := c.buf[c.ok:]
		switch c.phase {
		case inHead:
			n, f := c.head.scan(rest, &c.limits)
			if f.reason != "" {
				c.refuse(f)
				return
			}
			if n == 0 {
				if c.due.IsZero() {
					c.due = time.Now().Add(c.limits.HeaderTime)
				}
				return
			}
			c.headDone(n)
		case inFirst:
			var probe chunks
			if _, _, f := probe.feed(rest[c.hlen:]); f.reason != "" && !probe.started {
				f.at += c.hlen
				c.refuse(f)
				return
			}
			if !probe.started {
				return
			}
			c.release(c.hlen, inChunks)
		case inLength:
			n := min(c.left, int64(len(rest)))
			c.ok += int(n)
			if c.left -= n; c.left == 0 {
				c.phase = inHead
			}
		case inChunks:
			n, done, f := c.body.feed(rest)
			c.ok += n
			if f.reason != "" {
				c.breakOff(f.reason, f.detail, c.base+int64(c.ok))
				return
			}
			if done {
				c.phase = inHead
			}
		default:
			return
		}
	}
}

// headDone decides what follows a head of n bytes that is in order.
func (c *Conn) headDone(n int) {
	h := &c.head
	c.connect = c.connect || h.connect
	switch {
	case h.chunked && !h.expect:
		c.phase, c.hlen = inFirst, n
		c.due = time.Now().Add(c.limits.Progress)
	case h.chunked:
		c.release(n, inChunks)
	case h.length > 0:
		c.left = h.length
		c.release(n, inLength)
	default:
		c.release(n, inHead)
	}
}

// release lets n bytes of head go.
func (c *Conn) release(n int, next phase) {
	c.ok += n
	c.phase, c.head, c.body, c.due = next, head{}, chunks{}, time.Time{}
}

// refuse puts the stand-in where the faulty head was held. Whatever follows is dropped.
func (c *Conn) refuse(f fault) {
	c.violation.Store(&Violation{Reason: f.reason, Detail: f.detail, Offset: c.base + int64(c.ok+f.at)})
	if c.connect {
		c.held = append([]byte{}, c.buf[c.ok:]...)
	}
	c.buf = append(c.buf[:c.ok], violationHead...)
	c.phase, c.ok, c.due = refused, len(c.buf), time.Time{}
}

// breakOff makes Read fail behind what is deliverable.
func (c *Conn) breakOff(r gate.Reason, detail string, at int64) {
	c.violation.Store(&Violation{Reason: r, Detail: detail, Offset: at, inBody: true})
	c.phase, c.buf = broken, c.buf[:c.ok]
}

// direct reads body bytes into the caller's buffer and judges them there.
func (c *Conn) direct(p []byte) (int, error) {
	if c.phase == inLength {
		p = p[:min(int64(len(p)), c.left)]
	} else {
		p = p[:min(len(p), c.limits.Header)] // what turns out to be a next head must fit the buffer
	}
	if err := c.armProgress(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if err != nil && n == 0 {
		if c.expired(err) {
			c.breakOff(gate.ReasonLimitTime, "the body made no progress", c.base)
			return 0, c.violation.Load()
		}
		return 0, err
	}
	if c.phase == inLength {
		c.base += int64(n)
		if c.left -= int64(n); c.left == 0 {
			c.phase = inHead
		}
		return n, nil
	}
	used, done, f := c.body.feed(p[:n])
	c.base += int64(used)
	switch {
	case f.reason != "":
		c.breakOff(f.reason, f.detail, c.base)
		if used == 0 {
			return 0, c.violation.Load()
		}
	case done:
		c.phase = inHead
		c.buf = append(c.buf[:0], p[used:n]...)
		c.judge()
	}
	return used, nil
}
