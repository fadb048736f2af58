package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// serveStreams accepts connections while there is a slot for them.
func (s *Server) serveStreams(ctx context.Context, l net.Listener, slots chan struct{}, running *sync.WaitGroup) error {
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil: // out of descriptors: the connection waits in the queue
			pause(ctx, restAfterError)
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			closed := context.AfterFunc(ctx, func() { c.Close() })
			defer closed()
			s.serveStream(ctx, c)
		})
	}
}

// serveStream answers the queries of one connection in their order. A message has streamIdle from the last answer to its last byte.
func (s *Server) serveStream(ctx context.Context, c net.Conn) {
	in, out := make([]byte, maxMessage), make([]byte, 2, 2+512)
	for range maxPerStream {
		if c.SetDeadline(time.Now().Add(streamIdle)) != nil {
			return
		}
		if _, err := io.ReadFull(c, in[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(in))
		if n > maxMessage {
			return
		}
		if _, err := io.ReadFull(c, in[:n]); err != nil {
			return
		}
		reply, limited := s.answer(out, in[:n])
		if reply == nil {
			return
		}
		binary.BigEndian.PutUint16(reply, uint16(len(reply)-2))
		if _, err := c.Write(reply); err != nil {
			return
		}
		if limited {
			pause(ctx, restAfterLimit)
		}
	}
}
