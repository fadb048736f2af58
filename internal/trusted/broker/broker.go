// Package broker turns a permit and the name of a credential into a live credential on a request, and takes it out of the answer.
//
// A credential's value is fetched when it is first needed, by one fetch however many ask, and kept in memory until its source changes.
// It goes into exactly one slot of one request, against a permit of an https request whose rule names both credential and slot. The
// caller is told a receipt: the credential's name and a keyed fingerprint, never the value.
//
// When a source fails there is no credential: nothing falls back to an older value or another source.
package broker

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/core/secret"
)

const (
	fetchTime  = 45 * time.Second // one fetch, from whatever source
	retryAfter = time.Second      // a source that failed is left alone for so long
	refusedGap = 10 * time.Second // a value this young is not fetched anew because an upstream refused it: a sandbox can provoke refusals
	maxTold    = 1024             // hosts under a wildcard that are remembered to have seen one credential
	maxOld     = 8                // values of before rotations that answers are still searched for
)

// Kind is the form of a credential's value. The zero Kind is none and is refused.
type Kind uint8

const (
	NoKind Kind = iota
	APIKey      // an opaque string
	Basic       // a password; or "user:password", for a slot that names no user
)

// A Source is where a credential's value lives. Its methods are called by one goroutine at a time.
type Source interface {
	// Load reads the value now. The bytes become the caller's. Errors name what is wrong and hold nothing of the value.
	Load(ctx context.Context) ([]byte, error)
	// Changed reports whether a value that was loaded at one time may be another now. It is asked before every use and costs a stat at most.
	Changed(loaded, now time.Time) bool
}

// Spec is one credential: what it looks like and where it comes from.
type Spec struct {
	Kind   Kind
	Source Source
}

// Config names the credentials. FingerprintKey is random per run and needed.
type Config struct {
	Credentials    map[gate.CredentialName]Spec
	FingerprintKey [32]byte
	Now            func() time.Time // nil: time.Now
}

// Broker holds credentials. Safe for concurrent use.
type Broker struct {
	key     [32]byte
	now     func() time.Time
	entries map[gate.CredentialName]*entry
}

// entry is one credential's state.
type entry struct {
	name gate.CredentialName
	spec Spec

	mu       sync.Mutex
	cur      *held          // nil: none yet, or none any more
	old      []secret.Value // parts of before rotations, oldest first
	outdated bool           // cur must be fetched again
	flight   *flight        // nil: no fetch is under way
	failure  error          // of the last fetch, nil when it went well
	failed   time.Time
	closed   bool
	told     map[gate.Host]bool // who has seen it; beyond maxTold, all are taken to have
}

// held is one value of a credential with what is derived from it.
type held struct {
	value       secret.Value
	parts       []secret.Value // the value; for Basic also the password alone
	old         []secret.Value // parts of before rotations
	fingerprint string
	loaded      time.Time

	mu        sync.Mutex
	redactors map[string]*secret.Redactor // by the user name of a basic slot; "" for all other slots
}

// flight is a fetch that is under way. Its fields are set before done is closed.
type flight struct {
	done   chan struct{}
	cancel context.CancelFunc
	held   *held
	err    error
}

// New checks the credentials' descriptions. Nothing is fetched yet.
func New(c Config) (*Broker, error) {
	if c.FingerprintKey == ([32]byte{}) {
		return nil, errors.New("broker: a fingerprint key is needed")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	b := &Broker{key: c.FingerprintKey, now: c.Now, entries: make(map[gate.CredentialName]*entry, len(c.Credentials))}
	for name, spec := range c.Credentials {
		if name.IsZero() || spec.Source == nil || spec.Kind != APIKey && spec.Kind != Basic {
			return nil, fmt.Errorf("broker: credential %q: needs a name, a kind and a source", name)
		}
		b.entries[name] = &entry{name: name, spec: spec}
	}
	return b, nil
}

// Ready makes sure that the credential a permit's rule injects can be had now, and returns its receipt. A rule that injects nothing is
// always ready, with the zero Receipt. The error is a *gate.Failure.
func (b *Broker) Ready(ctx context.Context, p policy.Permit) (record.Receipt, error) {
	h, err := b.forPermit(ctx, p)
	if err != nil || h == nil {
		return record.Receipt{}, err
	}
	return record.Receipt{Credential: p.Injection().Credential, Fingerprint: h.fingerprint}, nil
}

// Redactor masks what the host of a permit was told, under whatever rule, and what its own rule injects, as far as it was ever fetched: nil when
// there is nothing to mask. It is for answers to requests that carry no credential: an upstream may have kept what an earlier one told it.
func (b *Broker) Redactor(p policy.Permit) *secret.Redactor {
	var last *held
	var values []secret.Value
	for name, e := range b.entries {
		e.mu.Lock()
		if h := e.cur; h != nil && (e.told[p.Host()] || len(e.told) >= maxTold || name == p.Injection().Credential) {
			if last != nil {
				values = append(values, slices.Concat(last.parts, last.old)...)
			}
			last = h
		}
		e.mu.Unlock()
	}
	switch {
	case last == nil:
		return nil
	case values == nil: // almost always
		return last.redactor("")
	}
	return secret.NewRedactor(slices.Concat(values, last.parts, last.old)...)
}

// tell remembers that a host has seen a credential.
func (e *entry) tell(h gate.Host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told == nil {
		e.told = map[gate.Host]bool{}
	}
	if len(e.told) < maxTold {
		e.told[h] = true
	}
}

// Refused is told that an upstream did not accept the credential of a permit's rule. The next use fetches it again, unless it has just been.
func (b *Broker) Refused(p policy.Permit) {
	if e := b.entries[p.Injection().Credential]; e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cur != nil && b.now().Sub(e.cur.loaded) >= refusedGap {
			e.outdated = true
		}
	}
}

// Invalidate makes the next use of a credential fetch it again.
func (b *Broker) Invalidate(name gate.CredentialName) {
	if e := b.entries[name]; e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.outdated, e.failure = true, nil
	}
}

// Close ends fetches, wipes every value and refuses what comes after. Answers that are still being scrubbed break off.
func (b *Broker) Close() {
	for _, e := range b.entries {
		e.mu.Lock()
		e.closed = true
		f := e.flight
		if f != nil {
			f.cancel()
		}
		for _, v := range e.old {
			v.Wipe()
		}
		if e.cur != nil {
			e.cur.wipe()
		}
		e.cur, e.old = nil, nil
		e.mu.Unlock()
		if f != nil {
			<-f.done
		}
	}
}

// forPermit is the value that a permit allows to be used, nil when its rule injects none.
func (b *Broker) forPermit(ctx context.Context, p policy.Permit) (*held, error) {
	in := p.Injection()
	switch {
	case !p.Valid() || p.Kind() != policy.Request:
		return nil, &gate.Failure{Reason: gate.ReasonBug, Detail: "no permit for a request"}
	case in.Mode == policy.InjectNone:
		return nil, nil
	case p.Scheme() != gate.HTTPS:
		return nil, &gate.Failure{Reason: gate.ReasonCredentialClear}
	}
	e := b.entries[in.Credential]
	if e == nil {
		return nil, unavailable(in.Credential, errors.New("no such credential is configured"))
	}
	return b.fetch(ctx, e)
}

func unavailable(name gate.CredentialName, err error) error {
	return &gate.Failure{Reason: gate.ReasonCredentialSource, Detail: "credential " + name.String(), Err: err}
}

// fetch returns the current value, and loads it first when there is none or its source has changed.
func (b *Broker) fetch(ctx context.Context, e *entry) (*held, error) {
	e.mu.Lock()
	now := b.now()
	switch {
	case e.closed:
		e.mu.Unlock()
		return nil, unavailable(e.name, errors.New("the broker is closed"))
	case e.flight == nil && e.cur != nil && !e.outdated && !e.spec.Source.Changed(e.cur.loaded, now):
		defer e.mu.Unlock()
		return e.cur, nil
	case e.flight == nil && e.failure != nil && now.Sub(e.failed) < retryAfter:
		defer e.mu.Unlock()
		return nil, e.failure
	case e.flight == nil:
		// The fetch belongs to the credential, not to the request that asked first: its end must not fail the others.
		fly, cancel := context.WithTimeout(context.Background(), fetchTime)
		e.flight = &flight{done: make(chan struct{}), cancel: cancel}
		e.outdated = false
		go b.load(fly, e, e.flight)
	}
	f := e.flight
	e.mu.Unlock()
	select {
	case <-f.done:
		return f.held, f.err
	case <-ctx.Done():
		return nil, unavailable(e.name, ctx.Err())
	}
}

// load is a fetch. It ends within fetchTime, or when Close cancels it.
func (b *Broker) load(ctx context.Context, e *entry, f *flight) {
	defer f.cancel()
	raw, err := e.spec.Source.Load(ctx)
	var h *held
	if err == nil {
		h, err = b.hold(e.name, e.spec.Kind, raw)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer close(f.done)
	e.flight = nil
	if err == nil && e.closed {
		h.wipe()
		err = errors.New("the broker is closed")
	}
	if err != nil {
		e.failure, e.failed = unavailable(e.name, err), b.now()
		f.err = e.failure
		if e.cur != nil { // fail closed, but remember what answers must not hold
			e.retire()
		}
		return
	}
	e.failure = nil
	if e.cur != nil {
		if same(e.cur.value, h.value) { // keep what was derived from it
			e.cur.loaded = h.loaded
			h.wipe()
			f.held = e.cur
			return
		}
		e.retire()
	}
	h.old = slices.Clone(e.old)
	e.cur, f.held = h, h
}

func same(a, b secret.Value) bool {
	equal := false
	// The only error is that one was wiped, and then they are not the same.
	_ = a.Use(func(x []byte) error {
		return b.Use(func(y []byte) error { equal = subtle.ConstantTimeCompare(x, y) == 1; return nil })
	})
	return equal
}

// retire makes the current value an old one. Answers in flight keep their own redactors.
func (e *entry) retire() {
	e.old = append(e.old, e.cur.parts...)
	e.cur = nil
	for len(e.old) > maxOld {
		e.old[0].Wipe()
		e.old = e.old[1:]
	}
}

// hold checks a value and takes ownership of its bytes.
func (b *Broker) hold(name gate.CredentialName, kind Kind, raw []byte) (*held, error) {
	value := bytes.TrimSuffix(bytes.TrimSuffix(raw, []byte("\n")), []byte("\r"))
	if err := check(value); err != nil {
		clear(raw)
		return nil, err
	}
	h := &held{value: secret.New(name.String(), value), loaded: b.now(), redactors: map[string]*secret.Redactor{}}
	h.parts = []secret.Value{h.value}
	if _, password, ok := bytes.Cut(value, []byte(":")); kind == Basic && ok {
		h.parts = append(h.parts, secret.New(name.String(), bytes.Clone(password)))
	}
	h.fingerprint = h.value.Fingerprint(b.key)
	return h, nil
}

// check refuses values that cannot travel in a header or cannot be found again in an answer. Its errors hold nothing of the value.
func check(value []byte) error {
	switch {
	case len(value) == 0:
		return errors.New("the value is empty")
	case len(value) < secret.MinLen:
		return fmt.Errorf("the value is shorter than %d bytes, so it could not be told from ordinary text in an answer", secret.MinLen)
	case len(value) > secret.MaxLen:
		return fmt.Errorf("the value is longer than %d bytes", secret.MaxLen)
	case !utf8.Valid(value):
		return errors.New("the value is not text")
	case value[0] == ' ' || value[len(value)-1] == ' ':
		return errors.New("the value begins or ends with a space")
	}
	for i, c := range value {
		if c < ' ' || c == 0x7f {
			return fmt.Errorf("the value holds a control byte (0x%02x) at %d", c, i)
		}
	}
	return nil
}

// redactor masks the value, its older ones, and the pair that was sent when a basic slot names a user.
func (h *held) redactor(user string) *secret.Redactor {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.redactors[user]; r != nil {
		return r
	}
	values := slices.Concat(h.parts, h.old)
	if user != "" {
		// The only error is that the value was wiped, and then nothing is sent.
		_ = h.value.Use(func(v []byte) error {
			pair := append([]byte(user+":"), v...)
			values = append(values, secret.New(h.value.Name(), pair))
			return nil
		})
	}
	r := secret.NewRedactor(values...)
	h.redactors[user] = r
	return r
}

func (h *held) wipe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.parts {
		v.Wipe()
	}
	for _, r := range h.redactors {
		r.Wipe()
	}
}
