// Package daemon wires everything together: it is the only package that knows all the others.
//
// A Gateway is the outside of one session: certificates, credentials, the proxy and the name server. Run puts a sandbox in front of one.
package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/placeholder"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/hostile/capture"
	"postern/internal/hostile/dns"
	"postern/internal/hostile/proxy"
	"postern/internal/operator/config"
	"postern/internal/trusted/ca"
)

// GatewayConfig is what one session's gateway is made of. Every field is needed unless its comment says otherwise.
type GatewayConfig struct {
	Session      gate.SessionID
	Profile      *config.Compiled
	Authority    *ca.Authority
	Placeholders *placeholder.Set // nil: none
	Writable     []string         // what of the host the sandbox can write, free of links
	Recorder     proxy.Recorder
	Log          *slog.Logger
}

// Gateway serves one session. Close ends it.
type Gateway struct {
	GatewayConfig
	upstream *Upstream
	proxy    *proxy.Proxy
	dns      *dns.Server
	limits   *limit.Session
	policy   atomic.Pointer[policy.Policy]
	evidence atomic.Pointer[func() error] // identity of the sandbox; nil until bound
	ended    atomic.Bool
	denials  atomic.Int64
	serving  sync.WaitGroup
}

// NewGateway makes a session's gateway. Nothing is read from a credential source until a request needs it.
func NewGateway(c GatewayConfig) (*Gateway, error) {
	g := &Gateway{GatewayConfig: c, limits: limit.New(c.Profile.Limits, nil)}
	g.policy.Store(c.Profile.Policy)
	var err error
	if g.upstream, err = NewUpstream(upstreamConfig(c)); err != nil {
		return nil, err
	}
	var seed [32]byte
	_, _ = rand.Read(seed[:])
	if g.dns, err = dns.New(dns.Config{Seed: seed, Allow: g.limits.DNS}); err != nil {
		g.upstream.Close()
		return nil, err
	}
	g.proxy, err = proxy.New(proxy.Config{
		Session: c.Session, Policy: g.policy.Load, Minter: c.Authority, Upstream: g.upstream,
		Recorder: &counting{c.Recorder, &g.denials}, Resolver: g.dns.Names(), Limits: g.limits, Alive: g.alive,
		Placeholders: c.Placeholders, Voice: voiceOf(c.Profile), HTTP1Only: http1Only(c.Profile), Log: c.Log,
	})
	if err != nil {
		g.upstream.Close()
		return nil, err
	}
	return g, nil
}

// alive is asked before every connection and every request, and again by Ready.
func (g *Gateway) alive() gate.Reason {
	if g.ended.Load() {
		return gate.ReasonSessionEnded
	}
	if check := g.evidence.Load(); check != nil && (*check)() != nil {
		return gate.ReasonIdentity
	}
	return gate.ReasonNone
}

// Bind sets how the sandbox behind the listeners is recognised.
func (g *Gateway) Bind(check func() error) { g.evidence.Store(&check) }

// Denials is how many decisions refused something.
func (g *Gateway) Denials() int64 { return g.denials.Load() }

// Replace puts another policy in force and cuts what it does not allow.
func (g *Gateway) Replace(p *policy.Policy) {
	g.policy.Store(p)
	g.proxy.Recheck()
}

// Serve answers everything that arrives on a sandbox's sockets until Close or until the set is closed.
func (g *Gateway) Serve(ctx context.Context, set *capture.Set) {
	for _, l := range set.TCP {
		g.serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						g.Log.Error("listener failed", "error", err)
					}
					return
				}
				g.serving.Go(func() { g.proxy.ServeConn(c.TCPConn, c.Original) })
			}
		})
	}
	g.serving.Go(func() {
		if err := g.dns.Serve(ctx, set.DNSPacket, set.DNSStream); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			g.Log.Error("name server failed", "error", err)
		}
	})
}

// ServeExplicit serves a listener outside any sandbox as an explicit proxy. It exists for measurements: whoever can reach the
// listener has what the policy allows.
func (g *Gateway) ServeExplicit(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		g.serving.Go(func() { g.proxy.ServeConn(c, netip.AddrPort{}) })
	}
}

// refusedEarly records a connection that capture itself turned away.
func (g *Gateway) refusedEarly(why gate.Reason, to netip.AddrPort) {
	g.denials.Add(1)
	r := &record.Record{Kind: record.Decision, Event: newEvent(), Session: g.Session, Verdict: policy.Deny.String(), Reason: why, Action: "connect"}
	if to.IsValid() {
		r.Host, r.Port = to.Addr().String(), to.Port()
	}
	_ = g.Recorder.Append(r)
}

// Close refuses what comes, cuts what is under way, wipes the credentials and returns when nothing runs any more.
func (g *Gateway) Close() {
	if g.ended.Swap(true) {
		return
	}
	g.proxy.Close()
	g.upstream.Close()
	g.serving.Wait()
}

// voiceOf and http1Only cover the presets that are not used too, so that a refused model host still answers in its provider's words.
func voiceOf(c *config.Compiled) func(gate.Host) policy.Voice {
	return func(h gate.Host) policy.Voice {
		for _, v := range c.Voices {
			if v.Host.Match(h) {
				return v.Voice
			}
		}
		return policy.VoicePlain
	}
}

func http1Only(c *config.Compiled) func(gate.Host) bool {
	return func(h gate.Host) bool {
		return slices.ContainsFunc(c.H1Only, func(p policy.HostPattern) bool { return p.Match(h) })
	}
}

// counting counts refusals on their way to the log.
type counting struct {
	proxy.Recorder
	denials *atomic.Int64
}

func (c *counting) Append(r *record.Record) error {
	if r.Kind == record.Decision && r.Verdict == policy.Deny.String() {
		c.denials.Add(1)
	}
	return c.Recorder.Append(r)
}

func newEvent() gate.EventID {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return gate.NewEventID(b)
}

// makePlaceholders draws this session's stand-ins: for each credential of the profile one value, of the shape its clients accept.
func makePlaceholders(c *config.Compiled) (*placeholder.Set, map[gate.CredentialName]string, error) {
	set, values := &placeholder.Set{}, map[gate.CredentialName]string{}
	for _, p := range c.Placeholders {
		random := make([]byte, p.Shape.Random())
		_, _ = rand.Read(random)
		v, err := p.Shape.Make(random)
		if err != nil {
			return nil, nil, fmt.Errorf("placeholder for %s: %w", p.Credential, err)
		}
		if err := set.Add(p.Credential, v); err != nil {
			return nil, nil, fmt.Errorf("placeholder for %s: %w", p.Credential, err)
		}
		values[p.Credential] = v
	}
	return set, values, nil
}

// watchPolicy looks at the policy's files once a second and puts an edited policy in force. A broken or untrusted file keeps the old one.
func (g *Gateway) watchPolicy(ctx context.Context, load func() (*config.Compiled, error), stamp func() string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := stamp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := stamp()
		if now == last {
			continue
		}
		last = now
		note := &record.Record{Kind: record.Notice, Event: newEvent(), Session: g.Session, Detail: "policy reloaded"}
		c, err := load()
		if err != nil {
			g.Log.Warn("policy not reloaded; the old one stays in force", "error", err)
			note.Reason, note.Detail = gate.ReasonConfig, "policy not reloaded; the old one stays in force"
		} else {
			g.Replace(c.Policy)
		}
		_ = g.Recorder.Append(note)
	}
}
