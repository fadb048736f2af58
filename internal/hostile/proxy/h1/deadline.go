package h1

import (
	"errors"
	"os"
	"time"
)

// SetDeadline sets both of the server's deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.Conn.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

// SetReadDeadline sets the server's deadline for reads. An earlier one of the filter's own stays in force.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outer = t
	return c.Conn.SetReadDeadline(earlier(c.outer, c.own))
}

// setOwn sets the filter's deadline; the zero time removes it.
func (c *Conn) setOwn(t time.Time) error {
	if t.Equal(c.own) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = t
	return c.Conn.SetReadDeadline(earlier(c.outer, c.own))
}

// armProgress renews the deadline for body bytes when less than half of it is left: most reads then cost no timer.
func (c *Conn) armProgress() error {
	now := time.Now()
	if left := c.own.Sub(now); !c.own.IsZero() && left > c.limits.Progress/2 && left <= c.limits.Progress {
		return nil
	}
	return c.setOwn(now.Add(c.limits.Progress))
}

// expired reports whether err is the filter's own deadline, rather than the server's.
func (c *Conn) expired(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.own.IsZero() && !time.Now().Before(c.own) && (c.outer.IsZero() || c.own.Before(c.outer))
}

// earlier is the earlier of two deadlines, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
