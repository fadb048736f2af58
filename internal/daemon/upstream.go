package daemon

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/core/secret"
	"postern/internal/operator/config"
	"postern/internal/trusted/broker"
	"postern/internal/trusted/egress"
	"postern/internal/trusted/scrub"
)

// UpstreamConfig is what a session may use of the world, as its profile says. Session is needed.
type UpstreamConfig struct {
	Session     gate.SessionID
	Credentials map[gate.CredentialName]config.Credential
	Upstreams   map[gate.Authority]config.Upstream
	Writable    []string      // what of the host a sandbox can write, free of links: no credential's command is taken from there
	Proxy       *url.URL      // nil: none
	Answer      time.Duration // until an upstream's response head; zero: egress's default
}

// Upstream is one session's way to the world, as the proxy sees it: the broker's credentials over the session's own connections. The zero
// Upstream refuses.
type Upstream struct {
	credentials *broker.Broker
	way         *egress.Session
}

// NewUpstream makes the credentials' sources and the session's pools. It reads root certificates; no credential is touched.
func NewUpstream(c UpstreamConfig) (*Upstream, error) {
	fixed, err := fixedUpstreams(c.Upstreams)
	if err != nil {
		return nil, err
	}
	log.SetOutput(io.Discard) // net/http has no other place for what it says about an upstream, and quotes that: "Unsolicited response … starting with"
	e, err := egress.New(egress.Config{Upstreams: fixed, Proxy: c.Proxy, AnswerTime: c.Answer})
	if err != nil {
		return nil, err
	}
	specs, err := sources(c.Credentials, c.Writable)
	if err != nil {
		return nil, err
	}
	b := broker.Config{Credentials: specs}
	_, _ = rand.Read(b.FingerprintKey[:])
	credentials, err := broker.New(b)
	if err != nil {
		return nil, err
	}
	return &Upstream{credentials, e.Session(c.Session)}, nil
}

// upstreamConfig takes out of a gateway's profile what concerns the world.
func upstreamConfig(c GatewayConfig) UpstreamConfig {
	return UpstreamConfig{Session: c.Session, Credentials: c.Profile.Credentials, Upstreams: c.Profile.Upstreams, Writable: c.Writable, Proxy: c.Profile.Proxy,
		Answer: c.Profile.Limits.Complete().Answer}
}

// sources makes of each declared credential the source that reads it.
func sources(declared map[gate.CredentialName]config.Credential, writable []string) (map[gate.CredentialName]broker.Spec, error) {
	specs := make(map[gate.CredentialName]broker.Spec, len(declared))
	for name, c := range declared {
		spec := broker.Spec{Kind: broker.APIKey}
		if c.Kind == config.Basic {
			spec.Kind = broker.Basic
		}
		var err error
		if len(c.Source.Command) > 0 {
			spec.Source, err = broker.NewCommand(broker.CommandConfig{Argv: c.Source.Command, Avoid: writable})
		} else {
			spec.Source, err = broker.NewFile(c.Source.File, c.Source.JSON...)
		}
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", name, err)
		}
		specs[name] = spec
	}
	return specs, nil
}

// fixedUpstreams reads the roots of names with a fixed address.
func fixedUpstreams(declared map[gate.Authority]config.Upstream) (map[gate.Authority]egress.Upstream, error) {
	fixed := make(map[gate.Authority]egress.Upstream, len(declared))
	for a, u := range declared {
		f := egress.Upstream{Address: u.Address}
		if u.CAFile != "" {
			var err error
			if f.Roots, err = egress.ReadRoots(u.CAFile); err != nil {
				return nil, fmt.Errorf("upstream %s: %w", a, err)
			}
		}
		fixed[a] = f
	}
	return fixed, nil
}

// Ready is proxy.Upstream's.
func (u *Upstream) Ready(ctx context.Context, p policy.Permit) (record.Receipt, error) {
	if u.credentials == nil {
		return record.Receipt{}, &gate.Failure{Reason: gate.ReasonBug, Detail: "no broker"}
	}
	return u.credentials.Ready(ctx, p)
}

// RoundTrip is proxy.Upstream's: the credential goes onto a copy of the request that nobody else sees, the copy leaves, the answer is scrubbed.
func (u *Upstream) RoundTrip(p policy.Permit, slot policy.Slot, r *http.Request) (*http.Response, error) {
	out, name, red, err := u.dress(p, slot, r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	resp, err := u.way.RoundTrip(p, name, out)
	if err != nil {
		return nil, err
	}
	resp.Request = r // not the one with the credential
	if resp.StatusCode == http.StatusUnauthorized && !name.IsZero() {
		u.credentials.Refused(p)
	}
	if err := scrub.Response(resp, red); err != nil {
		return nil, err
	}
	return resp, nil
}

// dress makes the request that leaves, and says whose connections it uses and what masks its answer.
//
// The answer to a request that carries no credential is masked too, whatever its rule: what the upstream was told before, it may tell now.
func (u *Upstream) dress(p policy.Permit, slot policy.Slot, r *http.Request) (*http.Request, gate.CredentialName, *secret.Redactor, error) {
	var none gate.CredentialName
	if u.credentials == nil || u.way == nil {
		return nil, none, nil, &gate.Failure{Reason: gate.ReasonBug, Detail: "no way out"}
	}
	var red *secret.Redactor
	if slot == (policy.Slot{}) {
		if red = u.credentials.Redactor(p); red.IsZero() {
			return r, none, nil, nil
		}
	}
	out := r.WithContext(r.Context())
	out.Header = r.Header.Clone()
	scrub.Request(out)
	if slot == (policy.Slot{}) {
		return quiet(out, red), none, red, nil
	}
	_, red, err := u.credentials.Inject(r.Context(), p, slot, out)
	if err != nil {
		return nil, none, nil, err
	}
	return quiet(out, red), p.Injection().Credential, red, nil
}

// quiet masks the header of interim answers (103), which reach the proxy through its trace and not as an answer.
func quiet(r *http.Request, red *secret.Redactor) *http.Request {
	trace := httptrace.ContextClientTrace(r.Context())
	if trace == nil || trace.Got1xxResponse == nil || red.IsZero() {
		return r
	}
	// httptrace calls the newer hook first, then the older one with the same header.
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			scrub.Header(http.Header(h), red)
			return nil
		},
	}))
}

// Tunnel is proxy.Upstream's.
func (u *Upstream) Tunnel(ctx context.Context, p policy.Permit) (*net.TCPConn, error) {
	if u.way == nil {
		return nil, &gate.Failure{Reason: gate.ReasonBug, Detail: "no way out"}
	}
	return u.way.Tunnel(ctx, p)
}

// Close cuts the session's connections and wipes its credentials.
func (u *Upstream) Close() {
	if u.way != nil {
		u.way.Close()
	}
	if u.credentials != nil {
		u.credentials.Close()
	}
}
