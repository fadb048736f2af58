// Package limit bounds what one session, and the gateway as a whole, may use: slots, rates and bytes.
// It is pure: time is an argument.
package limit

import "time"

// Limits are the bounds of one session. A zero or negative field means its default from Defaults; nothing is ever unlimited.
type Limits struct {
	Connections int           // open connections at once, and requests under way at once on all of them
	Handshakes  Rate          // TLS handshakes
	Requests    Rate          // HTTP requests
	DNS         Rate          // DNS queries
	Leaves      Rate          // certificates minted to deliver a refusal
	Header      int           // bytes of one request head
	Body        int64         // bytes of one request body
	Upload      int64         // request body bytes of the whole session
	Streams     int           // concurrent HTTP/2 streams of one connection
	HelloTime   time.Duration // until a ClientHello or request line is complete
	HeaderTime  time.Duration // until a request head is complete
	Idle        time.Duration // a kept-alive connection without a request
	Progress    time.Duration // a body or a stream without a byte in either direction
	Answer      time.Duration // until the upstream's response head
	Duration    time.Duration // of the whole session
}

// Rate is a token bucket: Per tokens a second, at most Burst at once. The zero Rate is "default"; a Rate without a Burst
// may spend one second's tokens at once, and at least one.
type Rate struct {
	Per   float64
	Burst int
}

// Defaults are the limits of a session whose policy sets none. They are several times what agents, package managers and test suites
// were seen to use, and small enough that a sandbox which tries to exhaust the host fails to.
func Defaults() Limits {
	return Limits{
		// A loop of connect() without close: each connection costs two descriptors and up to 64 KiB of the gateway,
		// and each request whose answer is not read up to 1 MiB.
		Connections: 1024,
		// A loop of new TLS connections: each costs about a third of a millisecond of the gateway's CPU in signatures.
		Handshakes: Rate{Per: 500, Burst: 2000},
		// A loop of small requests: each costs CPU, upstream quota and a line of the audit log's disk. A burst lets a package manager's
		// thousands of requests through at line speed.
		Requests: Rate{Per: 5000, Burst: 20000},
		// Data carried out in names, and a flood of queries: nothing is resolved upstream, so only our CPU is at stake.
		DNS: Rate{Per: 500, Burst: 2000},
		// A scan over invented names: a refusal over TLS needs a certificate, so each name costs a key's signature and memory.
		Leaves: Rate{Per: 20, Burst: 200},
		// A head that never ends: it is in memory until it is judged. Services refuse heads above 8 to 64 KiB.
		Header: 64 << 10,
		// A single endless upload. The largest layers, models and packs that are pushed in one request are a few GiB.
		Body: 8 << 30,
		// A day's slow exfiltration through an allowed host that takes uploads.
		Upload: 64 << 30,
		// Stream floods on one connection (rapid reset, CVE-2023-44487). Clients are told this number and keep to it; 100 is their habit.
		Streams: 250,
		// A connection that is opened and says nothing, or one byte now and then (slow loris).
		HelloTime:  5 * time.Second,
		HeaderTime: 10 * time.Second,
		// Connections kept open for nothing.
		Idle: 5 * time.Minute,
		// A body that trickles, and an upstream that has died without a word. Model providers send a ping more often than this.
		Progress: 5 * time.Minute,
		// An upstream that accepts and never answers. A model may think for minutes before the first byte.
		Answer: 10 * time.Minute,
		// A session that was forgotten, with its credentials.
		Duration: 24 * time.Hour,
	}
}

// Complete is l with every zero or negative field replaced by its default.
func (l Limits) Complete() Limits {
	d := Defaults()
	return Limits{
		Connections: positive(l.Connections, d.Connections),
		Handshakes:  l.Handshakes.or(d.Handshakes),
		Requests:    l.Requests.or(d.Requests),
		DNS:         l.DNS.or(d.DNS),
		Leaves:      l.Leaves.or(d.Leaves),
		Header:      positive(l.Header, d.Header),
		Body:        positive(l.Body, d.Body),
		Upload:      positive(l.Upload, d.Upload),
		Streams:     positive(l.Streams, d.Streams),
		HelloTime:   positive(l.HelloTime, d.HelloTime),
		HeaderTime:  positive(l.HeaderTime, d.HeaderTime),
		Idle:        positive(l.Idle, d.Idle),
		Progress:    positive(l.Progress, d.Progress),
		Answer:      positive(l.Answer, d.Answer),
		Duration:    positive(l.Duration, d.Duration),
	}
}

func positive[N int | int64 | time.Duration](n, def N) N {
	if n > 0 {
		return n
	}
	return def
}

// maxRate is far above what any gateway serves; it keeps the arithmetic of buckets, and infinities, away.
const maxRate = 1e9

func (r Rate) or(def Rate) Rate {
	if !(r.Per > 0) { // not "r.Per <= 0": NaN is a default too
		return def
	}
	r.Per = min(r.Per, maxRate)
	if r.Burst <= 0 {
		r.Burst = max(1, int(r.Per))
	}
	return r
}

// Totals are the bounds of all sessions together. A zero or negative field means its default from DefaultTotals.
type Totals struct {
	Connections int
	Handshakes  Rate
	Requests    Rate
	DNS         Rate
	Leaves      Rate
}

// DefaultTotals bound a gateway to about what two cores and 64 Ki descriptors can serve, so that many sessions at their limits slow
// down instead of taking the host with them.
func DefaultTotals() Totals {
	return Totals{
		Connections: 16384,
		Handshakes:  Rate{Per: 4000, Burst: 16000},
		Requests:    Rate{Per: 40000, Burst: 160000},
		DNS:         Rate{Per: 20000, Burst: 40000},
		Leaves:      Rate{Per: 200, Burst: 2000},
	}
}

// Complete is t with every zero or negative field replaced by its default.
func (t Totals) Complete() Totals {
	d := DefaultTotals()
	return Totals{
		Connections: positive(t.Connections, d.Connections),
		Handshakes:  t.Handshakes.or(d.Handshakes),
		Requests:    t.Requests.or(d.Requests),
		DNS:         t.DNS.or(d.DNS),
		Leaves:      t.Leaves.or(d.Leaves),
	}
}
