package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/hostile/proxy/h1"
	"postern/internal/hostile/proxy/refuse"
)

// exchange is one request on its way.
type exchange struct {
	p     *Proxy
	f     *flow
	w     http.ResponseWriter
	r     *http.Request
	event gate.EventID
	start time.Time

	action   policy.Action
	judged   *policy.Policy // that made the decision
	decision policy.Decision
	slot     policy.Slot
	receipt  record.Receipt
	stripped string // which of the client's own credentials were removed, for the record

	verdict  policy.Verdict // what was recorded
	reason   gate.Reason    // of the decision, and then of the outcome
	detail   string
	status   int
	faulty   bool         // the request stands in for one that the filter refused
	handedOn bool         // a CONNECT: its inside is recorded instead
	aborted  bool         // the connection must not look as if it had ended well
	unread   bool         // an answer was given while the client may still be sending
	uploaded atomic.Bool  // the request's body was read to its end
	in, out  atomic.Int64 // body bytes towards upstream and towards the sandbox
}

// ServeHTTP is the handler of every request, HTTP/1.1 and HTTP/2.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		panic(http.ErrAbortHandler)
	}
	defer p.working.Done()
	x := &exchange{p: p, f: flowFrom(r.Context()), w: w, r: r, event: newEvent(), start: p.Now(), reason: gate.ReasonBug}
	x.f.requests.Add(1)
	x.serve()
	x.drain()
}

func (x *exchange) serve() {
	defer x.finish()
	defer x.rescue()
	x.run()
}

// run is steps 9 to 16 of a request's life. The first step that says no has refused, and nothing below it happens.
func (x *exchange) run() {
	switch {
	case !x.alive():
	case !x.readHead():
	case !x.connects():
	case !x.decide():
	case !x.admit():
	case !x.takeCredentials():
	case !x.ready():
	case !x.commit():
	default:
		x.forward()
	}
}

// rescue turns a panic into a refusal, or where an answer has begun, into one that visibly breaks off.
func (x *exchange) rescue() {
	v := recover()
	switch {
	case v == nil:
		return
	case v == http.ErrAbortHandler:
		x.aborted = true
		return
	}
	x.p.Log.Error("request handler failed", "event", x.event.String(), "panic", v, "stack", string(debug.Stack()))
	if x.reason = gate.ReasonBug; x.status != 0 {
		x.aborted = true
		return
	}
	x.w.Header().Set("Connection", "close")
	x.deny(gate.ReasonBug, "")
}

// finish records what became of the request, whatever happened.
func (x *exchange) finish() {
	if x.handedOn {
		return
	}
	rec := x.record()
	if x.verdict == policy.Allow {
		rec.Kind, rec.Verdict, rec.Rule = record.Outcome, "", ""
	}
	rec.Status, rec.BytesIn, rec.BytesOut, rec.Duration = x.status, x.in.Load(), x.out.Load(), x.p.Now().Sub(x.start)
	err := x.p.Recorder.Append(rec)
	if x.aborted || err != nil && x.verdict == policy.Allow {
		panic(http.ErrAbortHandler) // an outcome that cannot be written closes the connection; the log refuses what comes next
	}
}

func (x *exchange) record() *record.Record {
	a := &x.action
	r := &record.Record{Kind: record.Decision, Event: x.event, Session: x.p.Session, Verdict: x.verdict.String(), Reason: x.reason,
		Rule: x.decision.Rule, Action: "request", Scheme: a.Scheme.String(), Host: a.Host.String(), Port: uint16(a.Port),
		Method: a.Method.String(), Path: a.Path.Raw(), Detail: x.detail}
	switch {
	case x.faulty: // its head was never read
		r.Host, r.Port, r.Method = x.f.target(), uint16(x.f.targetPort()), ""
	case a.Host.IsZero():
		r.Host = x.r.Host
		fallthrough
	case a.Method == gate.NoMethod:
		r.Method = x.r.Method
	}
	if a.Git.Op != git.NotGit {
		r.Git, r.Repo = a.Git.Op.String(), a.Git.Repo.String()
	}
	if !x.receipt.Credential.IsZero() {
		r.Credential, r.Receipt = x.receipt.Credential.String(), x.receipt.Fingerprint
	}
	if x.stripped != "" && r.Detail == "" {
		r.Detail = "removed the client's own " + x.stripped
	}
	return r
}

// deny refuses the request. It is the only way a request is refused, and it always returns false.
func (x *exchange) deny(why gate.Reason, detail string) bool {
	return x.denyStatus(why, detail, 0)
}

func (x *exchange) denyStatus(why gate.Reason, detail string, status int) bool {
	x.reason, x.detail = why, detail
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.p.bounds.Progress))
	if x.action.Git.Op == git.Push {
		x.discard() // git shows a refusal only when it has sent everything
	}
	x.closeUnread()
	x.status = refuse.Write(x.w, x.r, refuse.Refusal{
		Reason: why, Detail: detail, Rule: x.decision.Rule, Event: x.event, Host: x.action.Host.String(),
		Voice: x.p.Voice(x.action.Host), Git: x.action.Git, Status: status,
	})
	return false
}

// alive: the sandbox is still the one that was bound, and its session has not ended.
func (x *exchange) alive() bool {
	if why := x.p.Alive(); why != gate.ReasonNone {
		return x.deny(why, "")
	}
	return true
}

// decide asks policy about exactly the bytes that will leave.
func (x *exchange) decide() bool {
	x.action.Git = git.Classify(x.action.Host, x.action.Method, x.action.Path)
	x.judged = x.p.Policy()
	d := x.judged.Decide(policy.Subject{Session: x.p.Session}, x.action)
	if x.f.refusal.Reason != gate.ReasonNone { // the connection is served only to be refused
		d = policy.Decision{Reason: x.f.refusal.Reason, Rule: x.f.refusal.Rule}
	}
	x.decision = d
	if d.Verdict == policy.Allow {
		return true
	}
	if x.action.Upgrade { // whatever the reason: a client that can do without falls back on this status alone
		return x.denyStatus(d.Reason, x.f.detail, x.p.Voice(x.action.Host).UpgradeStatus())
	}
	if where := x.misplacedPlaceholder(); where != "" {
		return x.deny(d.Reason, where)
	}
	return x.deny(d.Reason, x.f.detail)
}

// admit takes a request token and checks a declared length before a byte of the body is read.
func (x *exchange) admit() bool {
	if why := x.p.Limits.Request(x.p.Now()); why != gate.ReasonNone {
		return x.deny(why, "")
	}
	if x.r.ContentLength > x.maxBody() {
		return x.deny(gate.ReasonLimitBody, "")
	}
	return true
}

func (x *exchange) maxBody() int64 {
	if n := x.decision.Permit.MaxBody(); n > 0 {
		return n
	}
	return x.p.bounds.Body
}

// ready makes sure that the credential can be had before anything is promised or sent.
func (x *exchange) ready() bool {
	if x.slot.Kind == policy.NoSlot {
		return true
	}
	receipt, err := x.p.Upstream.Ready(x.r.Context(), x.decision.Permit)
	if err != nil {
		return x.deny(failure(err))
	}
	x.receipt = receipt
	return true
}

// commit puts the intent on disk. From here on the request counts as allowed.
func (x *exchange) commit() bool {
	x.verdict, x.reason = policy.Allow, gate.ReasonAllowed
	ctx := context.WithoutCancel(x.r.Context()) // a client that leaves now does not undo the intent
	if err := x.p.Recorder.Commit(ctx, x.record()); err != nil {
		x.verdict = policy.Deny
		x.p.Log.Info("audit record not written", "event", x.event.String(), "error", err)
		return x.deny(gate.ReasonAudit, "")
	}
	return true
}

type flowKey struct{}

// withFlow finds the flow of a connection that the server was handed.
func withFlow(ctx context.Context, c net.Conn) context.Context {
	for {
		switch t := c.(type) {
		case *flowConn:
			return context.WithValue(ctx, flowKey{}, t.flow)
		case *h1.Conn:
			c = t.Conn
		case *tls.Conn:
			c = t.NetConn()
		default:
			return ctx // flowFrom refuses
		}
	}
}

// flowFrom is the flow of a request. A request without one cannot happen; if it does, its zero flow refuses everything.
func flowFrom(ctx context.Context) *flow {
	if f, ok := ctx.Value(flowKey{}).(*flow); ok {
		return f
	}
	return &flow{refusal: policy.Decision{Reason: gate.ReasonBug}}
}
