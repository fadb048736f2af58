package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token is a fresh random credential.
func token(t testing.TB) string {
	t.Helper()
	b := make([]byte, 20)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return "tok-" + hex.EncodeToString(b)
}

// fake is a source that a test changes.
type fake struct {
	mu      sync.Mutex
	value   string
	err     error
	changed bool
	loads   int
	hold    chan struct{} // not nil: Load waits for it
}

func (f *fake) Load(ctx context.Context) ([]byte, error) {
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads++
	f.changed = false
	return []byte(f.value), f.err
}

func (f *fake) Changed(time.Time, time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fake) set(value string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.value, f.err, f.changed = value, err, true
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loads
}

func name(t testing.TB, s string) gate.CredentialName {
	t.Helper()
	n, err := gate.ParseCredentialName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newBroker(t testing.TB, kind Kind, s Source) (*Broker, *clock) {
	t.Helper()
	clk := &clock{t: time.Now()}
	c := Config{Credentials: map[gate.CredentialName]Spec{name(t, "key"): {kind, s}}, Now: clk.now}
	rand.Read(c.FingerprintKey[:])
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, clk
}

// slots are one of each kind.
func slots(t testing.TB) (header, basic, query policy.Slot) {
	t.Helper()
	var errs [3]error
	header, errs[0] = policy.NewHeaderSlot("Authorization", "Bearer {}")
	basic, errs[1] = policy.NewBasicSlot("x-access-token")
	query, errs[2] = policy.NewQuerySlot("key")
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return
}

func permit(t testing.TB, change func(*policy.Rule, *policy.Action)) policy.Permit {
	t.Helper()
	h, err := gate.ParseHost("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	path, err := gate.ParsePath("/")
	if err != nil {
		t.Fatal(err)
	}
	header, basic, query := slots(t)
	r := policy.Rule{Name: "test", Effect: policy.Allow, Host: policy.ExactHost(h), Scheme: gate.HTTPS, Methods: gate.AllMethods,
		Inject: policy.Injection{Mode: policy.InjectSet, Credential: name(t, "key"), Slots: []policy.Slot{header, basic, query}}}
	a := policy.Action{Kind: policy.Request, Host: h, Method: gate.GET, Path: path}
	if change != nil {
		change(&r, &a)
	}
	a.Scheme = r.Scheme
	p, err := policy.Compile([]policy.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	a.Port = p.Rules()[0].Port
	d := p.Decide(policy.Subject{Session: gate.NewSessionID([10]byte{1})}, a)
	if d.Verdict != policy.Allow {
		t.Fatalf("no permit: %s", d.Reason)
	}
	return d.Permit
}

func request(t testing.TB, rawURL string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rawURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func reason(t testing.TB, err error) gate.Reason {
	t.Helper()
	if err == nil {
		return gate.ReasonNone
	}
	var f *gate.Failure
	if !errors.As(err, &f) {
		t.Errorf("%T is no *gate.Failure: %v", err, err)
		return gate.ReasonBug
	}
	return f.Reason
}

func TestReceiptNamesTheValueWithoutTellingIt(t *testing.T) {
	f := &fake{value: token(t)}
	b, _ := newBroker(t, APIKey, f)
	one, err := b.Ready(t.Context(), permit(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := b.Ready(t.Context(), permit(t, nil))
	if one.Credential != name(t, "key") || len(one.Fingerprint) != 8 || one != again {
		t.Errorf("%+v, then %+v", one, again)
	}
	f.set(token(t), nil)
	if other, err := b.Ready(t.Context(), permit(t, nil)); err != nil || other.Fingerprint == one.Fingerprint {
		t.Errorf("another value, the same receipt: %v", err)
	}
	second, _ := newBroker(t, APIKey, &fake{value: f.value})
	if far, _ := second.Ready(t.Context(), permit(t, nil)); far.Fingerprint == one.Fingerprint {
		t.Error("receipts of two runs can be compared")
	}
	if text := fmt.Sprintf("%+v %#v", b.entries[name(t, "key")].cur.value, b.entries[name(t, "key")].cur.value); strings.Contains(text, f.value) {
		t.Error("a held value prints")
	}
}

func TestBadValuesAreRefusedAtTheSource(t *testing.T) {
	good := token(t)
	for what, v := range map[string]string{
		"empty": "", "newline only": "\n", "short": good[:7], "CR": good + "\rx", "LF": good + "\nx", "two newlines": good + "\n\n",
		"NUL": good + "\x00", "DEL": good + "\x7f", "tab": good + "\t", "leading space": " " + good, "trailing space": good + " ",
		"not text": good + "\xff", "huge": strings.Repeat(good, 800),
	} {
		b, _ := newBroker(t, APIKey, &fake{value: v})
		_, err := b.Ready(t.Context(), permit(t, nil))
		if reason(t, err) != gate.ReasonCredentialSource {
			t.Errorf("%s: %v", what, err)
			continue
		}
		var f *gate.Failure
		errors.As(err, &f)
		if strings.Contains(f.Err.Error()+f.Error(), good[:7]) {
			t.Errorf("%s: the error tells the value", what)
		}
	}
}

func TestOneFetchHoweverManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{value: token(t), hold: make(chan struct{})}
		b, _ := newBroker(t, APIKey, f)
		defer b.Close()
		p := permit(t, nil)
		impatient, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { // the first to ask gives up; that must not fail the others
			if _, err := b.Ready(impatient, p); reason(t, err) != gate.ReasonCredentialSource {
				t.Error(err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if _, err := b.Ready(t.Context(), p); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(f.hold)
		wg.Wait()
		if n := f.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
	})
}

func TestFailingSourceGivesNothingAndIsNotHammered(t *testing.T) {
	f := &fake{value: token(t)}
	b, clk := newBroker(t, APIKey, f)
	p := permit(t, nil)
	if _, err := b.Ready(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	f.set("", errors.New("locked"))
	for range 5 {
		if _, err := b.Ready(t.Context(), p); reason(t, err) != gate.ReasonCredentialSource {
			t.Errorf("the old value is still given out: %v", err)
		}
	}
	if n := f.count(); n != 2 {
		t.Errorf("%d fetches", n)
	}
	clk.add(retryAfter)
	f.set(token(t), nil)
	if _, err := b.Ready(t.Context(), p); err != nil {
		t.Errorf("a mended source: %v", err)
	}
}

func TestRotationIsSeenAndOldValuesStayMasked(t *testing.T) {
	f := &fake{}
	b, _ := newBroker(t, APIKey, f)
	header, _, _ := slots(t)
	var values []string
	for i := range 5 {
		values = append(values, token(t))
		f.set(values[i], nil)
		r := request(t, "https://api.example.com/")
		_, red, err := b.Inject(t.Context(), permit(t, nil), header, r)
		if err != nil {
			t.Fatal(err)
		}
		if r.Header.Get("Authorization") != "Bearer "+values[i] {
			t.Error("an old value was used after the rotation")
		}
		for j, v := range values {
			if strings.Contains(red.String("was "+v), v) {
				t.Errorf("after rotation %d value %d passes", i, j)
			}
		}
		if i > 0 && strings.Contains(b.Redactor(permit(t, nil)).String(values[0]), values[0]) {
			t.Error("an old value passes on requests without a credential")
		}
	}
	for range 3 * maxOld {
		f.set(token(t), nil)
		if _, err := b.Ready(t.Context(), permit(t, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.entries[name(t, "key")].old); n != maxOld {
		t.Errorf("%d old values are kept", n)
	}
}

func TestRotationUnderLoad(t *testing.T) {
	f := &fake{value: token(t)}
	b, _ := newBroker(t, APIKey, f)
	header, _, _ := slots(t)
	p := permit(t, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				r := request(t, "https://api.example.com/")
				_, red, err := b.Inject(t.Context(), p, header, r)
				if err != nil {
					t.Error(err)
					return
				}
				if sent := r.Header.Get("Authorization"); strings.Contains(red.String(sent), sent[len("Bearer "):]) {
					t.Error("a redactor does not know the value it came with")
					return
				}
			}
		})
	}
	for range 200 {
		f.set(token(t), nil)
	}
	wg.Wait()
}

func TestRefusedCredentialIsFetchedAgainButNotAtOnce(t *testing.T) {
	f := &fake{value: token(t)}
	b, clk := newBroker(t, APIKey, f)
	p := permit(t, nil)
	ready := func() {
		t.Helper()
		if _, err := b.Ready(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	ready()
	b.Refused(p)
	ready()
	if n := f.count(); n != 1 {
		t.Errorf("%d fetches: a fresh value was fetched again", n)
	}
	clk.add(refusedGap)
	b.Refused(p)
	ready()
	ready()
	if n := f.count(); n != 2 {
		t.Errorf("%d fetches", n)
	}
	b.Refused(p) // the same value was just confirmed
	ready()
	if n := f.count(); n != 2 {
		t.Errorf("%d fetches", n)
	}
	b.Invalidate(name(t, "key"))
	ready()
	if n := f.count(); n != 3 {
		t.Errorf("%d fetches after Invalidate", n)
	}
	b.Refused(policy.Permit{})
	b.Invalidate(name(t, "other"))
}

func TestCloseWipesAndRefuses(t *testing.T) {
	f := &fake{value: token(t)}
	b, _ := newBroker(t, APIKey, f)
	header, _, _ := slots(t)
	_, red, err := b.Inject(t.Context(), permit(t, nil), header, request(t, "https://api.example.com/"))
	if err != nil {
		t.Fatal(err)
	}
	held := b.entries[name(t, "key")].cur.value
	f.hold = make(chan struct{})
	b.Invalidate(name(t, "key"))
	waiting := make(chan error, 1)
	go func() { _, err := b.Ready(t.Context(), permit(t, nil)); waiting <- err }()
	for under := false; !under; { // until the fetch has begun
		e := b.entries[name(t, "key")]
		e.mu.Lock()
		under = e.flight != nil
		e.mu.Unlock()
	}
	b.Close()
	if err := <-waiting; reason(t, err) != gate.ReasonCredentialSource {
		t.Errorf("a fetch during Close: %v", err)
	}
	if held.Len() != 0 {
		t.Error("the value is still in memory")
	}
	if text := red.String("anything at all"); strings.Contains(text, "anything") {
		t.Error("a wiped redactor lets bytes pass")
	}
	if _, err := b.Ready(t.Context(), permit(t, nil)); reason(t, err) != gate.ReasonCredentialSource {
		t.Errorf("after Close: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	key := [32]byte{1}
	for what, c := range map[string]Config{
		"no fingerprint key": {},
		"no kind":            {FingerprintKey: key, Credentials: map[gate.CredentialName]Spec{name(t, "key"): {Source: &fake{}}}},
		"unknown kind":       {FingerprintKey: key, Credentials: map[gate.CredentialName]Spec{name(t, "key"): {Kind: 9, Source: &fake{}}}},
		"no source":          {FingerprintKey: key, Credentials: map[gate.CredentialName]Spec{name(t, "key"): {Kind: APIKey}}},
		"no name":            {FingerprintKey: key, Credentials: map[gate.CredentialName]Spec{{}: {Kind: APIKey, Source: &fake{}}}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
