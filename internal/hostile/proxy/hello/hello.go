// Package hello looks at the first bytes of a connection without consuming them, and says what the client speaks.
//
//	16 03 xx len len …        TLS record of type handshake (RFC 8446 §5.1); the ClientHello may span records
//	TOKEN SP …                HTTP/1.x request line (RFC 9112 §3)
//	"SSH-"                    SSH identification string (RFC 4253 §4.2)
//	4 hex digits "git-"       git daemon request in a pkt-line (gitprotocol-pack)
//
// The ClientHello parser is strict: it accepts what TLS 1.2 and 1.3 clients send and refuses what two parsers could read
// differently. It decides nothing; the caller judges the name it returns.
package hello

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"postern/internal/core/gate"
)

const (
	// MaxHello is the longest ClientHello in bytes, with its four-byte header. Post-quantum hellos are below 2 KiB.
	MaxHello = 16 << 10
	// MaxPeek is the most that is read before a verdict: a MaxHello sent in records of one byte each.
	MaxPeek = MaxHello * (recordHeader + 1)

	firstRead    = 2 << 10 // holds every ClientHello measured in one read
	recordHeader = 5
)

// Kind is what a connection begins with. The zero Kind is unknown and is refused.
type Kind uint8

const (
	Unknown Kind = iota
	Silent       // not one byte came: the client hung up, or waits for the server to speak first
	TLS
	HTTP
	SSH
	Git // git://
)

func (k Kind) String() string {
	switch k {
	case Silent:
		return "silent"
	case TLS:
		return "tls"
	case HTTP:
		return "http"
	case SSH:
		return "ssh"
	case Git:
		return "git"
	}
	return "unknown"
}

// First is what the first bytes of a connection said.
type First struct {
	Kind  Kind
	Hello ClientHello // when Kind is TLS
}

// Peek reads the first bytes of c until their kind is certain, and for TLS until the ClientHello is complete, but no longer
// than deadline and no more than MaxPeek bytes. The connection it returns, never nil, replays what was read; c must not be read again.
// The read deadline of c is cleared afterwards.
//
// The error is a *gate.Failure. First.Kind is set also beside an error, so that the refusal can be given in the client's protocol;
// for a refused ClientHello, First.Hello holds what was understood of it. A client that hung up before the first byte gives
// Kind Silent and an error that wraps io.EOF.
func Peek(c net.Conn, deadline time.Time) (First, *Conn, error) {
	s := scanner{}
	if err := c.SetReadDeadline(deadline); err != nil {
		return First{}, Replay(c, nil), failure(gate.ReasonProtocolUnknown, "the connection is gone", err)
	}
	first, err := s.run(c)
	if e := c.SetReadDeadline(time.Time{}); err == nil && e != nil {
		err = failure(gate.ReasonProtocolUnknown, "the connection is gone", e)
	}
	return first, Replay(c, s.buf), err
}

// scanner holds the bytes read so far.
type scanner struct {
	buf []byte
	asm assembler
}

func (s *scanner) run(c net.Conn) (First, error) {
	for {
		if done, first, err := s.look(); done {
			return first, err
		}
		if err := s.fill(c); err != nil {
			return s.cut(err)
		}
	}
}

// fill reads once.
func (s *scanner) fill(c net.Conn) error {
	if len(s.buf) == cap(s.buf) {
		grown := make([]byte, len(s.buf), min(max(firstRead, 2*cap(s.buf)), MaxPeek))
		copy(grown, s.buf)
		s.buf = grown
	}
	n, err := c.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf = s.buf[:len(s.buf)+n]
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// look classifies what is there; done is false while more bytes are needed.
func (s *scanner) look() (done bool, first First, err error) {
	kind, certain := classify(s.buf)
	if !certain {
		return false, First{}, nil
	}
	switch kind {
	case HTTP, SSH, Git:
		return true, First{Kind: kind}, nil
	case Unknown:
		return true, First{}, failure(gate.ReasonProtocolUnknown, "the first bytes are neither TLS nor HTTP", nil)
	}
	msg, err := s.asm.next(s.buf)
	if err == nil && msg == nil {
		if len(s.buf) < MaxPeek {
			return false, First{}, nil
		}
		err = malformed("longer than 16 KiB")
	}
	first = First{Kind: TLS}
	if err == nil {
		first.Hello, err = parseHello(msg)
	}
	return true, first, err
}

// cut explains a connection that ended or stalled before its kind was certain.
func (s *scanner) cut(err error) (First, error) {
	timeout := errors.Is(err, os.ErrDeadlineExceeded)
	switch kind, certain := classify(s.buf); {
	case len(s.buf) == 0 && timeout:
		return First{Kind: Silent}, failure(gate.ReasonProtocolUnknown, "the client waits for the server to speak first", err)
	case len(s.buf) == 0:
		return First{Kind: Silent}, failure(gate.ReasonProtocolUnknown, "the client closed the connection before it sent anything", err)
	case certain && kind == TLS && timeout:
		return First{Kind: TLS}, failure(gate.ReasonLimitTime, "the ClientHello was not complete in time", err)
	case certain && kind == TLS:
		return First{Kind: TLS}, failure(gate.ReasonMalformedHello, "the connection ended within the ClientHello", err)
	}
	return First{}, failure(gate.ReasonProtocolUnknown, "too few bytes to tell a protocol", err)
}

// classify names the protocol that b begins with; certain is false while b may still become more than one.
func classify(b []byte) (k Kind, certain bool) {
	if len(b) == 0 {
		return Unknown, false
	}
	if b[0] == recordHandshake {
		return TLS, true
	}
	if ok, whole := hasPrefix(b, "SSH-"); ok {
		return SSH, whole
	}
	if k, certain := classifyGit(b); k == Git {
		return k, certain
	}
	const longestMethod = 32
	for i, c := range b {
		switch {
		case c == ' ' && i > 0:
			return HTTP, true
		case i >= longestMethod || !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '-'):
			return Unknown, true
		}
	}
	return HTTP, false
}

// classifyGit recognises "0032git-upload-pack …". Git is returned uncertain while b is a prefix of such a line.
func classifyGit(b []byte) (Kind, bool) {
	for i := 0; i < min(4, len(b)); i++ {
		if c := b[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return Unknown, true
		}
	}
	if len(b) <= 4 {
		// Four letters from A to F may also begin a method: wait for the fifth byte.
		return Git, false
	}
	if ok, whole := hasPrefix(b[4:], "git-"); ok {
		return Git, whole
	}
	return Unknown, true
}

// hasPrefix reports whether b begins with p, or with as much of p as b can hold, and whether all of p is there.
func hasPrefix(b []byte, p string) (ok, whole bool) {
	n := min(len(b), len(p))
	return string(b[:n]) == p[:n], n == len(p)
}

func failure(r gate.Reason, detail string, err error) error {
	return &gate.Failure{Reason: r, Detail: detail, Err: err}
}

func malformed(detail string) error { return failure(gate.ReasonMalformedHello, detail, nil) }
