package scrub

import (
	"encoding/binary"
	"io"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/secret"
)

// Where a stream is made of messages, a secret is searched for in the payload of each message across all its frames, and what is held back
// is released at the message's end: its reader may be waiting for just that byte before it says another word.

// A framing reads frame headers. It is not safe for concurrent use.
type framing interface {
	// header reads the header at the start of b: its size, zero when b is too short, and the frame it begins.
	header(b []byte) (size int, f frame, err error)
}

// frame is what a header says of the bytes after it.
type frame struct {
	payload uint64 // their number
	ends    bool   // the message ends with them
	aside   bool   // they stand between the frames of a message and are no part of it (at most 125 bytes)
}

// webSocket is RFC 6455 §5.2 as servers send it: without masks and, no extension being negotiated, without reserved bits.
type webSocket struct{}

func (webSocket) header(b []byte) (int, frame, error) {
	if len(b) < 2 {
		return 0, frame{}, nil
	}
	f := frame{payload: uint64(b[1] & 0x7f), ends: b[0]&0x80 != 0, aside: b[0]&0x08 != 0}
	size := 2
	switch f.payload {
	case 126:
		size = 4
	case 127:
		size = 10
	}
	switch {
	case b[0]&0x70 != 0:
		return 0, frame{}, opaque("a WebSocket extension")
	case b[1]&0x80 != 0 || f.aside && (size > 2 || !f.ends):
		return 0, frame{}, &gate.Failure{Reason: gate.ReasonUpstream, Detail: "a WebSocket frame that no server sends"}
	case len(b) < size:
		return 0, frame{}, nil
	case size == 4:
		f.payload = uint64(binary.BigEndian.Uint16(b[2:]))
	case size == 10:
		f.payload = binary.BigEndian.Uint64(b[2:])
	}
	return size, f, nil
}

// envelopes are the messages of gRPC, gRPC-Web and Connect: a byte of flags, a length of four bytes, the message.
type envelopes struct{}

// prefixed reports whether a body of this type is made of envelopes.
func prefixed(contentType string) bool {
	t, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	t = strings.TrimSpace(t)
	return (strings.HasPrefix(t, "application/grpc") || strings.HasPrefix(t, "application/connect+")) && !strings.HasPrefix(t, "application/grpc-web-text")
}

func (envelopes) header(b []byte) (int, frame, error) {
	switch {
	case len(b) < 5:
		return 0, frame{}, nil
	case b[0]&1 != 0:
		return 0, frame{}, opaque("a compressed message")
	}
	return 5, frame{payload: uint64(binary.BigEndian.Uint32(b[1:])), ends: true}, nil
}

const (
	frameRead = 16 << 10
	maxHeader = 10
	maxQueue  = 64 << 10 // bytes that may wait for a possible match to be decided
)

// framed redacts a stream of frames. Frame lengths stay true because masking keeps them.
type framed struct {
	src     io.ReadCloser
	framing framing
	red     *secret.Redactor
	s       *secret.Stream

	in    []byte // what was read
	head  []byte // the beginning of a header
	cur   frame  // whose payload is being read
	left  uint64 // bytes of it to come
	aside []byte // a frame aside, as far as it has come
	clean []byte // what came out of s last
	out   []byte // ready for the reader, from off on
	off   int
	err   error // the source's, after everything was released

	taken    uint64   // payload bytes given to s
	released uint64   // payload bytes that came out of s
	queue    []queued // what stands among payload bytes that s still holds
	waiting  int      // bytes in queue
}

// queued is a header, or a whole frame aside, that follows payload byte number at.
type queued struct {
	at   uint64
	data []byte
}

func newFramed(src io.ReadCloser, red *secret.Redactor, f framing) *framed {
	return &framed{src: src, framing: f, red: red, s: red.Stream(), in: make([]byte, frameRead)}
}

func (x *framed) Close() error { return x.src.Close() }

func (x *framed) Read(p []byte) (int, error) {
	for x.off == len(x.out) {
		if x.err != nil || len(p) == 0 {
			return 0, x.err
		}
		x.out, x.off = x.out[:0], 0
		var n int
		n, x.err = x.src.Read(x.in)
		if err := x.push(x.in[:n]); err != nil {
			x.err = err
		} else if x.err != nil {
			x.flush()
			cut, _ := x.red.Bytes(x.aside) // what the source's end has cut short
			x.out = append(append(x.out, x.head...), cut...)
		}
	}
	n := copy(p, x.out[x.off:])
	x.off += n
	return n, nil
}

// push takes bytes as they come.
func (x *framed) push(b []byte) error {
	for len(b) > 0 {
		if x.left == 0 {
			n, err := x.readHeader(b)
			if err != nil {
				return err
			}
			b = b[n:]
			continue
		}
		n := int(min(uint64(len(b)), x.left))
		x.payload(b[:n])
		b = b[n:]
	}
	return nil
}

// readHeader takes a header's bytes and returns how many of b they were.
func (x *framed) readHeader(b []byte) (int, error) {
	before := len(x.head)
	head := append(x.head, b[:min(len(b), maxHeader-before)]...)
	size, f, err := x.framing.header(head)
	if err != nil {
		return 0, err
	}
	if size == 0 {
		x.head = head
		return len(head) - before, nil
	}
	x.head = x.head[:0]
	x.cur, x.left = f, f.payload
	if f.aside {
		x.aside = append(x.aside[:0], head[:size]...)
	} else if err := x.emit(head[:size]); err != nil {
		return 0, err
	}
	if x.left == 0 {
		x.payload(nil) // an empty frame ends at once
	}
	return size - before, nil
}

// payload takes bytes of the current frame, all of them when it ends the frame.
func (x *framed) payload(b []byte) {
	x.left -= uint64(len(b))
	if x.cur.aside {
		x.aside = append(x.aside, b...)
		if x.left == 0 {
			head := len(x.aside) - int(x.cur.payload)
			masked, _ := x.red.Bytes(x.aside[head:])
			// emit cannot fail here: an aside is at most 127 bytes, and the next header is checked.
			_ = x.emit(append(x.aside[:head:head], masked...))
			x.aside = x.aside[:0]
		}
		return
	}
	x.taken += uint64(len(b))
	x.clean = x.s.Write(x.clean[:0], b)
	x.release(x.clean)
	if x.left == 0 && x.cur.ends {
		x.flush()
	}
}

func (x *framed) flush() {
	x.clean = x.s.Flush(x.clean[:0])
	x.release(x.clean)
}

// emit sends bytes that are not searched to where they belong: behind all payload taken so far.
func (x *framed) emit(b []byte) error {
	if x.released == x.taken {
		x.out = append(x.out, b...)
		return nil
	}
	if x.waiting += len(b); x.waiting > maxQueue {
		return &gate.Failure{Reason: gate.ReasonUpstream, Detail: "too many frames in one possible match"}
	}
	x.queue = append(x.queue, queued{x.taken, append([]byte(nil), b...)})
	return nil
}

// release sends payload that has been searched, and what stands among it.
func (x *framed) release(b []byte) {
	for len(x.queue) > 0 && x.queue[0].at <= x.released+uint64(len(b)) {
		q := x.queue[0]
		n := q.at - x.released
		x.out = append(append(x.out, b[:n]...), q.data...)
		b = b[n:]
		x.released += n
		x.waiting -= len(q.data)
		x.queue = x.queue[1:]
	}
	x.out = append(x.out, b...)
	x.released += uint64(len(b))
}
