package inspect

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// KnockID names the finding that says how many attempts were made. It is no check: the verdict is the listener's.
const KnockID = "knock"

// MaxTargets bounds one Knock.
const MaxTargets = 64

// knockTime bounds one attempt.
const knockTime = 500 * time.Millisecond

// Target is a server that must not be reached from a sandbox.
type Target struct {
	Network string `json:"network"` // "tcp", "udp" or "unix"
	Address string `json:"address"` // as net.Dial takes it; "@name" is an abstract Unix socket
}

// Message is what Knock says to target i. Its length does not depend on i.
func Message(nonce string, i int) string { return fmt.Sprintf("%s %03d\n", nonce, i) }

// Knock says Message to every target, all at once, and returns how many attempts were made. An attempt that was refused was made.
// It returns when every attempt has ended, within a second.
func Knock(ctx context.Context, targets []Target, nonce string) int {
	ctx, cancel := context.WithTimeout(ctx, 2*knockTime)
	defer cancel()
	var all sync.WaitGroup
	targets = targets[:min(len(targets), MaxTargets)]
	for i, t := range targets {
		all.Go(func() {
			c, err := dial(ctx, t.Network, t.Address)
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, Message(nonce, i)) // whether it arrives is for the other side to say
		})
	}
	all.Wait()
	return len(targets)
}

// dial connects with the deadline of one attempt.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: knockTime}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(knockTime)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
