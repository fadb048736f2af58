package broker

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

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
