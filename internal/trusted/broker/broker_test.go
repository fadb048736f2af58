package broker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

func TestInjectWritesExactlyOneSlot(t *testing.T) {
	value := token(t) + "/+ä&"
	b, _ := newBroker(t, APIKey, &fake{value: value + "\r\n"})
	header, basic, query := slots(t)
	fresh := func() *http.Request {
		r := request(t, "https://api.example.com/p%2Fq?a=b%20c&key=mine&KEY=x&k%65y=mine&%zz&key")
		r.Header = http.Header{"Authorization": {"mine", "too"}, "authorization": {"lower"}, "X-Other": {"stays"}}
		r.Trailer = http.Header{"Authorization": {"mine"}}
		return r
	}
	r := fresh()
	if _, _, err := b.Inject(t.Context(), permit(t, nil), header, r); err != nil {
		t.Fatal(err)
	}
	if got := r.Header; len(got) != 2 || len(got["Authorization"]) != 1 || got.Get("Authorization") != "Bearer "+value || got.Get("X-Other") != "stays" || len(r.Trailer) != 0 {
		t.Error("the header slot is not what the request carries alone")
	}
	if r.URL.RawQuery != fresh().URL.RawQuery {
		t.Error("a header slot changed the query")
	}
	r = fresh()
	if _, _, err := b.Inject(t.Context(), permit(t, nil), basic, r); err != nil {
		t.Fatal(err)
	}
	if user, password, ok := r.BasicAuth(); !ok || user != "x-access-token" || password != value {
		t.Error("the basic slot does not hold user and credential")
	}
	r = fresh()
	before := r.URL
	if _, _, err := b.Inject(t.Context(), permit(t, nil), query, r); err != nil {
		t.Fatal(err)
	}
	if r.URL.RawQuery != "a=b%20c&KEY=x&%zz&key="+url.QueryEscape(value) || r.URL.EscapedPath() != "/p%2Fq" {
		t.Error("the query slot changed more than its parameter")
	}
	if strings.Contains(before.RawQuery, value[:24]) {
		t.Error("the caller's URL was changed")
	}
	if r.Header.Get("Authorization") != "mine" {
		t.Error("a query slot changed the header")
	}
}

func TestBasicCredentials(t *testing.T) {
	password := token(t)
	nobody, err := policy.NewBasicSlot("")
	if err != nil {
		t.Fatal(err)
	}
	user, err := policy.NewBasicSlot("build")
	if err != nil {
		t.Fatal(err)
	}
	p := permit(t, func(r *policy.Rule, _ *policy.Action) { r.Inject.Slots = []policy.Slot{nobody, user} })
	for _, c := range []struct {
		kind           Kind
		value          string
		slot           policy.Slot
		user, password string
		want           gate.Reason
	}{
		{Basic, "me:" + password, nobody, "me", password, ""},
		{Basic, password, user, "build", password, ""},
		{APIKey, password, nobody, "", password, ""},
		{APIKey, "a:" + password, nobody, "", "a:" + password, ""},
		{Basic, password, nobody, "", "", gate.ReasonCredentialSource},
		{Basic, "long-enough-user:short", nobody, "", "", gate.ReasonCredentialSource},
	} {
		b, _ := newBroker(t, c.kind, &fake{value: c.value})
		r := request(t, "https://api.example.com/")
		_, red, err := b.Inject(t.Context(), p, c.slot, r)
		if reason(t, err) != c.want {
			t.Errorf("kind %d, user %q: %v", c.kind, c.slot.User, err)
			continue
		}
		if err != nil {
			if len(r.Header) != 0 {
				t.Error("a refused injection left something on the request")
			}
			continue
		}
		gotUser, gotPassword, _ := r.BasicAuth()
		if gotUser != c.user || gotPassword != c.password {
			t.Errorf("kind %d, user %q: another pair", c.kind, c.slot.User)
		}
		pair := base64.StdEncoding.EncodeToString([]byte(c.user + ":" + c.password))
		for _, echo := range []string{r.Header.Get("Authorization"), "you are " + c.password, pair} {
			if masked := red.String(echo); strings.Contains(masked, c.password) || strings.Contains(masked, pair[len(pair)/2:]) {
				t.Errorf("kind %d, user %q: an echo is not masked", c.kind, c.slot.User)
			}
		}
	}
}

func TestWithoutTheRightPermitThereIsNoCredential(t *testing.T) {
	f := &fake{value: token(t)}
	b, _ := newBroker(t, APIKey, f)
	header, _, _ := slots(t)
	other, err := policy.NewHeaderSlot("X-Api-Key", "")
	if err != nil {
		t.Fatal(err)
	}
	connect := permit(t, func(_ *policy.Rule, a *policy.Action) { a.Kind = policy.Connect })
	clear := permit(t, func(r *policy.Rule, _ *policy.Action) { r.Scheme, r.Inject = gate.HTTP, policy.Injection{} })
	plain := permit(t, func(r *policy.Rule, _ *policy.Action) { r.Inject = policy.Injection{} })
	missing := permit(t, func(r *policy.Rule, _ *policy.Action) { r.Inject.Credential = name(t, "missing") })
	for what, c := range map[string]struct {
		p    policy.Permit
		slot policy.Slot
		want gate.Reason
	}{
		"zero permit":        {policy.Permit{}, header, gate.ReasonBug},
		"connect permit":     {connect, header, gate.ReasonBug},
		"cleartext permit":   {clear, header, gate.ReasonBug},
		"rule without":       {plain, header, gate.ReasonBug},
		"undeclared slot":    {permit(t, nil), other, gate.ReasonBug},
		"zero slot":          {permit(t, nil), policy.Slot{}, gate.ReasonBug},
		"unknown credential": {missing, header, gate.ReasonCredentialSource},
	} {
		r := request(t, "https://api.example.com/")
		receipt, red, err := b.Inject(t.Context(), c.p, c.slot, r)
		if reason(t, err) != c.want || red != nil || receipt.Fingerprint != "" || len(r.Header) != 0 || r.URL.RawQuery != "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, p := range map[string]policy.Permit{"zero": {}, "connect": connect} {
		if _, err := b.Ready(t.Context(), p); reason(t, err) != gate.ReasonBug {
			t.Errorf("ready with a %s permit: %v", what, err)
		}
	}
	if receipt, err := b.Ready(t.Context(), plain); err != nil || receipt.Fingerprint != "" {
		t.Errorf("a rule that injects nothing: %v", err)
	}
	if b.Redactor(plain) != nil || b.Redactor(policy.Permit{}) != nil {
		t.Error("a redactor for no credential")
	}
	if f.count() != 0 {
		t.Error("the source was asked without need")
	}
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

func BenchmarkInject(b *testing.B) {
	br, _ := newBroker(b, APIKey, &fake{value: token(b)})
	header, _, _ := slots(b)
	p := permit(b, nil)
	r := request(b, "https://api.example.com/")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := br.Inject(b.Context(), p, header, r); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzSetQuery: whatever the query was, exactly one parameter of the name is left, it decodes to the value, and the others keep their bytes.
func FuzzSetQuery(f *testing.F) {
	for _, q := range []string{"", "a=b", "key=1&key=2", "k%65y=1", "&&", "key", "a;key=1", "%zz=1&key=%zz"} {
		f.Add(q, "value &=+%")
	}
	f.Fuzz(func(t *testing.T, query, value string) {
		r := &http.Request{URL: &url.URL{Path: "/", RawQuery: query}}
		setQuery(r, "key", value)
		found := 0
		for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
			k, v, _ := strings.Cut(pair, "=")
			if name, err := url.QueryUnescape(k); err != nil || name != "key" {
				if !bytes.Contains([]byte("&"+query+"&"), []byte("&"+pair+"&")) {
					t.Fatalf("%q was not in %q", pair, query)
				}
				continue
			}
			found++
			if got, err := url.QueryUnescape(v); err != nil || got != value {
				t.Fatalf("%q for %q", got, value)
			}
		}
		if found != 1 {
			t.Fatalf("%d parameters of the name in %q", found, r.URL.RawQuery)
		}
	})
}
