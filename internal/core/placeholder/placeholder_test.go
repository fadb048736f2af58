package placeholder

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func shape(t testing.TB, s string) Shape {
	t.Helper()
	sh, err := ParseShape(s)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return sh
}

func made(t testing.TB, s string) string {
	t.Helper()
	sh := shape(t, s)
	random := make([]byte, sh.Random())
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	p, err := sh.Make(random)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return p
}

func name(t testing.TB, s string) gate.CredentialName {
	t.Helper()
	n, err := gate.ParseCredentialName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// shapes are the forms of credentials that clients are known to check, each with the check.
func shapes() map[string]string {
	return map[string]string{
		"sk-ant-api03-{base64url:95}":       `^sk-ant-api03-[A-Za-z0-9_-]{95}$`,
		"sk-{alnum:48}":                     `^sk-[A-Za-z0-9]{48}$`,
		"ghp_{alnum:36}":                    `^ghp_[A-Za-z0-9]{36}$`,
		"github_pat_{alnum:22}_{alnum:59}":  `^github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}$`,
		"AIza{base64url:35}":                `^AIza[A-Za-z0-9_-]{35}$`,
		"npm_{alnum:36}":                    `^npm_[A-Za-z0-9]{36}$`,
		"{hex:32}":                          `^[0-9a-f]{32}$`,
		"{hex:8}-{hex:4}-{hex:4}-{hex:20}":  `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{20}$`,
		"AKIA{base32:16}":                   `^AKIA[A-Z2-7]{16}$`,
		"{base64:40}":                       `^[A-Za-z0-9+/]{40}$`,
		"xoxb-{lower:24}":                   `^xoxb-[a-z0-9]{24}$`,
		"{jwt}":                             `^eyJ[\w-]+\.eyJ[\w-]+\.[\w-]{43}$`,
		`{jwt:{"sub":"x","a":{"b":["}"]}}}`: `^eyJ[\w-]+\.eyJ[\w-]+\.[\w-]{43}$`,
		`Bearer={jwt:{}}~{alnum:4}`:         `^Bearer=eyJ[\w-]+\.[\w-]+\.[\w-]{43}~[A-Za-z0-9]{4}$`,
	}
}

func TestPlaceholderHasTheRealOnesForm(t *testing.T) {
	for s, form := range shapes() {
		p := made(t, s)
		if !regexp.MustCompile(form).MatchString(p) {
			t.Errorf("%s makes %q", s, p)
		}
		if !Marked(p) {
			t.Errorf("%s makes %q, which carries no mark", s, p)
		}
		if again := made(t, s); again == p {
			t.Errorf("%s makes the same placeholder twice", s)
		}
	}
}

func TestJWTPlaceholderIsAToken(t *testing.T) {
	for s, want := range map[string]map[string]any{
		"{jwt}":                            {"sub": "sandbox", "exp": 4102444800.0},
		`{jwt:{"https://x/auth":{"a":1}}}`: {"https://x/auth": map[string]any{"a": 1.0}},
	} {
		parts := strings.Split(made(t, s), ".")
		if len(parts) != 3 {
			t.Fatalf("%s has %d parts", s, len(parts))
		}
		for i, want := range []map[string]any{{"alg": "HS256", "typ": "JWT"}, want} {
			b, err := base64.RawURLEncoding.DecodeString(parts[i])
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			for k, v := range want {
				if g, _ := json.Marshal(got[k]); len(got) != len(want) || string(g) != func() string { w, _ := json.Marshal(v); return string(w) }() {
					t.Errorf("%s: part %d is %s", s, i, b)
				}
			}
		}
		if sig, err := base64.RawURLEncoding.DecodeString(parts[2]); err != nil || len(sig) != 32 {
			t.Errorf("the signature has %d bytes: %v", len(sig), err)
		}
	}
}

func TestMakeIsAFunctionOfItsRandomBytes(t *testing.T) {
	sh := shape(t, "sk-{alnum:48}")
	random := make([]byte, sh.Random())
	a, errA := sh.Make(random)
	b, errB := sh.Make(append(random, 1, 2, 3))
	if a != b || errA != nil || errB != nil {
		t.Errorf("%q and %q, %v and %v", a, b, errA, errB)
	}
	if _, err := sh.Make(random[1:]); err == nil {
		t.Error("makes one of too few random bytes")
	}
	if p, err := (Shape{}).Make(random); err == nil || p != "" {
		t.Errorf("the zero shape makes %q", p)
	}
	if !(Shape{}).IsZero() || sh.IsZero() {
		t.Error("IsZero")
	}
}

func TestParseShapeRefuses(t *testing.T) {
	for _, s := range []string{
		"", "sk-", "{alnum:15}", "sk-{alnum:8}-{hex:8}", "{alnum}", "{alnum:}", "{alnum:0}", "{alnum:-1}", "{alnum:x}", "{alnum:99999999999999999999}",
		"{alnum:4097}", "{alnum:4000}{alnum:4000}", "{emoji:30}", "{:30}", "{}", "{alnum:30", "alnum:30}", "{alnum:30}}", "a b{alnum:30}", "é{alnum:30}", "a\x00{alnum:30}", "\n{alnum:30}",
		"{jwt:}", "{jwt:[]}", "{jwt:1}", "{jwt:null}", `{jwt:{"a":1}`, `{jwt:{"a"}}`, `{jwt:{"a":1} }`, "{jwt:x}", "{JWT}", "{ALNUM:30}",
	} {
		if sh, err := ParseShape(s); err == nil || !sh.IsZero() {
			t.Errorf("%q is accepted", s)
		}
	}
}

func TestOrdinaryTextIsNotMarked(t *testing.T) {
	for _, s := range []string{
		"", "postern", "postern0", "https://github.com/acme/postern", "postern0000000000000000", "postern0abcdefgh", "POSTERN2ABCDEFGH", "90573e12", "90573e1290573e1290573e1290573e12",
		strings.Repeat("postern0", 500), "cG9zdGVybjA=", "%70ostern0", "0postern0aaaabbbb",
	} {
		if Marked(s) || new(Set).In(s) {
			t.Errorf("%q is taken for a placeholder", s)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "before") + "postern0" + rapid.StringMatching(`[a-z0-9]{4}`).Draw(t, "random") + "!" + rapid.String().Draw(t, "after")
		if Marked(s) || new(Set).In(s) {
			t.Fatalf("%q is taken for a placeholder", s)
		}
	})
}

func TestFindIsExact(t *testing.T) {
	var s Set
	a, b := made(t, "ghp_{alnum:36}"), made(t, "sk-{alnum:48}")
	for value, n := range map[string]string{a: "github", b: "openai"} {
		if err := s.Add(name(t, n), value); err != nil {
			t.Fatal(err)
		}
	}
	if s.Len() != 2 {
		t.Errorf("%d placeholders", s.Len())
	}
	for value, want := range map[string]string{a: "github", b: "openai", a + "x": "", a[:len(a)-1]: "", "": "", strings.ToUpper(a): "", a + b: "", " " + a: "", made(t, "ghp_{alnum:36}"): ""} {
		if got, ok := s.Find(value); got.String() != want || ok != (want != "") {
			t.Errorf("%q stands for %q, want %q", value, got, want)
		}
	}
	if got, ok := new(Set).Find(a); ok || !got.IsZero() {
		t.Error("the zero set finds a placeholder")
	}
}

func TestAddRefusesWhatIsNoPlaceholder(t *testing.T) {
	good := made(t, "ghp_{alnum:36}")
	var s Set
	if err := s.Add(name(t, "github"), good); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		name  gate.CredentialName
		value string
	}{
		"no name":  {gate.CredentialName{}, made(t, "ghp_{alnum:36}")},
		"twice":    {name(t, "other"), good},
		"empty":    {name(t, "other"), ""},
		"short":    {name(t, "other"), "postern0"},
		"long":     {name(t, "other"), good + strings.Repeat("x", MaxLen)},
		"unmarked": {name(t, "other"), "ghp_" + strings.Repeat("a", 36)},
	} {
		if err := s.Add(c.name, c.value); err == nil {
			t.Errorf("%s: is added", what)
		} else if c.value != "" && strings.Contains(err.Error(), c.value) {
			t.Errorf("%s: the error spells the value", what)
		}
	}
	if s.Len() != 1 {
		t.Errorf("%d placeholders", s.Len())
	}
}

// written are the ways in which a placeholder turns up where none belongs.
func written(p string) map[string]string {
	percent := func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			b.WriteString("%" + hex.EncodeToString([]byte{s[i]}))
		}
		return b.String()
	}
	m := map[string]string{
		"raw":                  p,
		"in text":              "token=" + p + ";x",
		"query":                url.QueryEscape("a b" + p + "&"),
		"percent":              percent(p),
		"PERCENT":              strings.ToUpper(percent("x")) + "%" + strings.ToUpper(percent(p)[1:3]) + percent(p)[3:],
		"basic":                "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+p)),
		"basic, user":          "Basic " + base64.StdEncoding.EncodeToString([]byte(p+":")),
		"base64, percent":      url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("u:" + p))),
		"bad percent as well":  "100% %zz " + p + " %",
		"bad percent, escaped": "%zz" + percent(p) + "%4",
	}
	for i, before := range []string{"", "x", "xy"} {
		for j, after := range []string{"", "x", "xy"} {
			at := string(rune('0'+i)) + string(rune('0'+j))
			m["base64 std "+at] = base64.StdEncoding.EncodeToString([]byte(before + p + after))
			m["base64 url "+at] = "." + base64.RawURLEncoding.EncodeToString([]byte(before+p+after)) + "."
		}
	}
	return m
}

func TestInFindsOwnAndOthersPlaceholders(t *testing.T) {
	for s := range shapes() {
		p, other := made(t, s), made(t, s)
		var own, foreign Set
		if err := own.Add(name(t, "a"), p); err != nil {
			t.Fatal(err)
		}
		if err := foreign.Add(name(t, "b"), other); err != nil {
			t.Fatal(err)
		}
		for how, text := range written(p) {
			for whose, set := range map[string]*Set{"own": &own, "another session's": &foreign, "the zero set's": {}} {
				if !set.In(text) {
					t.Errorf("%s, %s, %s: is not seen in %q", s, how, whose, text)
				}
			}
		}
		for _, text := range []string{"", "text/html", `W/"33a64df551425fcc55e4d42a148795d9f25f89d4"`, strings.Repeat("a", 10_000), "/repos/acme/postern/git/refs?per_page=100%25", "Mozilla/5.0 (X11; Linux x86_64)", p[:10]} {
			if own.In(text) {
				t.Errorf("%s: is seen in %q", s, text)
			}
		}
	}
}

func TestInIsSafeForManyAtOnce(t *testing.T) {
	var s Set
	p := made(t, "ghp_{alnum:36}")
	if err := s.Add(name(t, "github"), p); err != nil {
		t.Fatal(err)
	}
	t.Run("group", func(t *testing.T) {
		for range 8 {
			t.Run("reader", func(t *testing.T) {
				t.Parallel()
				for range 200 {
					if _, ok := s.Find(p); !ok || !s.In("x"+p) || s.In("x") {
						t.Fatal("wrong answer")
					}
				}
			})
		}
	})
}

func FuzzParseShape(f *testing.F) {
	for s := range shapes() {
		f.Add(s)
	}
	f.Add(`{jwt:{"a":"}"}}{hex:16}`)
	f.Fuzz(func(t *testing.T, s string) {
		sh, err := ParseShape(s)
		if err != nil {
			return
		}
		p, err := sh.Make(make([]byte, sh.Random()))
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > MaxLen || !Marked(p) {
			t.Fatalf("%q makes %q", s, p)
		}
		for i := range len(p) {
			if p[i] <= ' ' || p[i] > '~' {
				t.Fatalf("%q makes %q", s, p)
			}
		}
	})
}

func FuzzIn(f *testing.F) {
	set := new(Set)
	p := made(f, "ghp_{alnum:36}")
	if err := set.Add(name(f, "github"), p); err != nil {
		f.Fatal(err)
	}
	for _, text := range written(p) {
		f.Add(text)
	}
	f.Add("postern0postern0cG9zdGVybjA%70%6f")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, p) && !set.In(text) {
			t.Fatal("a placeholder is not seen")
		}
		if Marked(text) && !new(Set).In(text) {
			t.Fatal("a marked placeholder is not seen")
		}
	})
}

func BenchmarkIn(b *testing.B) {
	set := new(Set)
	for i, s := range []string{"ghp_{alnum:36}", "sk-ant-api03-{base64url:95}"} {
		if err := set.Add(name(b, string(rune('a'+i))), made(b, s)); err != nil {
			b.Fatal(err)
		}
	}
	text := "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
	b.ReportAllocs()
	for b.Loop() {
		set.In(text)
	}
}
