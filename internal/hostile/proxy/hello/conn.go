package hello

import (
	"errors"
	"io"
	"net"
)

// Conn is a connection whose first bytes have been read already: it replays them, then reads on.
type Conn struct {
	net.Conn
	prefix []byte
}

// Replay makes c read prefix first. The slice is kept until it has been read.
func Replay(c net.Conn, prefix []byte) *Conn { return &Conn{Conn: c, prefix: prefix} }

// Buffered is what will be replayed. The caller must not change it.
func (c *Conn) Buffered() []byte { return c.prefix }

// NetConn is the connection below, for socket options. Reading from it skips what is buffered.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Read reads what was peeked, then from the connection.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.prefix) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.prefix)
	if c.prefix = c.prefix[n:]; len(c.prefix) == 0 {
		c.prefix = nil // let the buffer go: connections live long
	}
	return n, nil
}

// WriteTo copies the connection to w. When both are TCP the kernel moves the bytes after the prefix (splice(2)).
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	var n int64
	for len(c.prefix) > 0 {
		m, err := w.Write(c.prefix)
		n += int64(m)
		c.prefix = c.prefix[m:]
		if err != nil {
			return n, err
		}
	}
	c.prefix = nil
	m, err := io.Copy(w, c.Conn)
	return n + m, err
}

// ReadFrom copies r to the connection. When both are TCP the kernel moves the bytes (splice(2)).
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite ends the sending half. It fails when the connection below has no halves.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("close write: the connection cannot be closed by halves")
}
