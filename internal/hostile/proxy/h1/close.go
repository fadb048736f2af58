package h1

import (
	"bufio"
	"errors"
	"net"
	"time"
)

// Detach takes the filter out of the way after the server let go of the connection (Hijack): for a CONNECT, or an upgrade that is
// about to be answered 101. It returns the connection below and the bytes that were read from it but not yet used, those in br
// included. The Conn must not be read afterwards. It fails when the client sent something else than its
// request so far; then the connection can only be closed.
func (c *Conn) Detach(br *bufio.Reader) (net.Conn, []byte, error) {
	if c.phase != inHead && c.held == nil {
		return nil, nil, errors.New("detach: the request is not complete")
	}
	var early []byte
	if br != nil {
		early, _ = br.Peek(br.Buffered())
	}
	rest := append(append([]byte(nil), early...), c.buf[c.r:]...)
	if c.held != nil { // what looked like a faulty head was the inside of the tunnel
		rest = append(rest[:len(rest)-len(violationHead)], c.held...)
		c.held = nil
		c.violation.Store(nil)
	}
	c.phase, c.buf, c.r, c.ok = surrendered, nil, 0, 0
	if err := c.setOwn(time.Time{}); err != nil {
		return nil, nil, err
	}
	return c.Conn, rest, nil
}

// CloseWrite ends the sending half. It fails when the connection below has no halves.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("close write: the connection cannot be closed by halves")
}

// Close closes the connection. After a violation it first lets the client read the refusal: closing on unread
// input would reset the connection and lose the answer.
func (c *Conn) Close() error {
	if c.violation.Load() != nil && c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_ = c.CloseWrite() // without it the client closes by itself once it has the answer
		var scratch [1 << 10]byte
		for n := 0; n < lingerLimit; {
			m, err := c.Conn.Read(scratch[:])
			if err != nil {
				break
			}
			n += m
		}
	}
	return c.Conn.Close()
}

// drain drops what a refused client still sends, so that the refusal is not lost to a reset, until the client hangs up.
func (c *Conn) drain() error {
	if err := c.setOwn(time.Time{}); err != nil {
		return err
	}
	for c.held != nil { // not dropped: it may be the inside of a tunnel
		if len(c.held) >= drainLimit {
			return c.violation.Load()
		}
		var more [1 << 10]byte
		n, err := c.Conn.Read(more[:])
		c.held = append(c.held, more[:n]...)
		if err != nil {
			return err
		}
	}
	c.room()
	for c.drops < drainLimit {
		n, err := c.Conn.Read(c.buf[:cap(c.buf)])
		if err != nil {
			return err
		}
		c.drops += n
	}
	return c.violation.Load()
}
