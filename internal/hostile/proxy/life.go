package proxy

import (
	"net"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// Close ends everything that is under way and returns when every connection is closed and every request is recorded.
// Connections that arrive afterwards are closed at once.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	live, conns := p.live, make([]net.Conn, 0, len(p.conns))
	p.live = map[*ticket]struct{}{}
	for c := range p.conns {
		conns = append(conns, c.arrived)
	}
	p.mu.Unlock()
	for t := range live {
		t.cut(gate.ReasonSessionEnded)
	}
	p.cancel(errClosed)
	for _, c := range conns {
		_ = c.Close() // as it arrived: no TLS or HTTP farewell that a client could refuse to read
	}
	_ = p.feed.Close()
	_ = p.server.Close()
	<-p.served
	p.working.Wait()
}

// Recheck asks the policy in force about everything that is under way and cuts what it would not allow now.
func (p *Proxy) Recheck() {
	p.mu.Lock()
	live := make([]*ticket, 0, len(p.live))
	for t := range p.live {
		live = append(live, t)
	}
	p.mu.Unlock()
	for _, t := range live {
		if d := p.decide(t.action); d.Verdict != policy.Allow {
			t.cut(d.Reason)
		}
	}
}

// ticket is one allowed thing under way.
type ticket struct {
	action policy.Action
	judged *policy.Policy    // that allowed it
	cut    func(gate.Reason) // ends it, and remembers why
}

// begin makes Recheck and Close see t. It answers with a reason when t must not go on: the session has ended, or
// the policy changed after t was judged and Recheck may have missed it, or too much is under way.
func (p *Proxy) begin(t *ticket) gate.Reason {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return gate.ReasonSessionEnded
	}
	if p.Policy() != t.judged {
		if d := p.decide(t.action); d.Verdict != policy.Allow {
			return d.Reason
		}
	}
	// Without HTTP/2 no more than the open connections could be under way. A stream that nobody reads holds a megabyte of its answer.
	if len(p.live) >= p.bounds.Connections {
		return gate.ReasonLimitConnections
	}
	p.live[t] = struct{}{}
	return gate.ReasonNone
}

func (p *Proxy) end(t *ticket) {
	p.mu.Lock()
	delete(p.live, t)
	p.mu.Unlock()
}

func (p *Proxy) decide(a policy.Action) policy.Decision {
	return p.Policy().Decide(policy.Subject{Session: p.Session}, a)
}

// arrive takes charge of a connection until depart; false when the proxy is closed.
func (p *Proxy) arrive(c *flowConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = struct{}{}
	p.working.Add(1)
	return true
}

func (p *Proxy) depart(c *flowConn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	p.working.Done()
}

// enter counts a request until working.Done; false when the proxy is closed.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.working.Add(1)
	}
	return !p.closed
}
