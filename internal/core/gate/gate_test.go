package gate_test

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func TestZeroValuesNameNothing(t *testing.T) {
	if !(gate.Host{}).IsZero() || !(gate.Path{}).IsZero() || !(gate.Repo{}).IsZero() || !(gate.SessionID{}).IsZero() || !(gate.EventID{}).IsZero() || !(gate.CredentialName{}).IsZero() {
		t.Error("a zero value names something")
	}
	if gate.NoMethod != 0 || gate.NoScheme != 0 || gate.ReasonNone != "" || gate.NoScheme.DefaultPort() != 0 {
		t.Error("the zero of an enumeration names something")
	}
	if gate.MethodSet(0).Has(gate.GET) || gate.AllMethods.Has(gate.NoMethod) {
		t.Error("the empty set holds a method, or the full one holds none")
	}
}

func TestMethodsAreReadExactly(t *testing.T) {
	all := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
	for _, s := range all {
		m, err := gate.ParseMethod(s)
		if err != nil || m.String() != s || !gate.AllMethods.Has(m) || !gate.Methods(m).Has(m) {
			t.Errorf("%s: %v, %v", s, m, err)
		}
		for _, other := range all {
			if n, _ := gate.ParseMethod(other); n != m && gate.Methods(m).Has(n) {
				t.Errorf("the set of %s has %s", s, other)
			}
		}
	}
	for _, s := range []string{"", "get", "Get", "GET ", " GET", "GET\x00", "CONNECT", "TRACE", "TRACK", "PRI", "GETS", "GE", "X", strings.Repeat("A", 64<<10)} {
		if m, err := gate.ParseMethod(s); err == nil || m != gate.NoMethod {
			t.Errorf("%.20q is accepted", s)
		} else if r := reason(t, err); r != gate.ReasonMethodUnknown {
			t.Errorf("%.20q: reason %s", s, r)
		}
	}
	if gate.AllMethods.Has(gate.Method(200)) || gate.Methods(gate.NoMethod) != 0 {
		t.Error("a set holds what is no method")
	}
}

func TestCredentialNames(t *testing.T) {
	for _, s := range []string{"a", "github", "my-key_2.x", strings.Repeat("a", 64)} {
		if n, err := gate.ParseCredentialName(s); err != nil || n.String() != s {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "A", "1a", "-a", "a b", "a/b", "ä", "a\x00", "aA", "a\n", strings.Repeat("a", 65), ".", "_a"} {
		if n, err := gate.ParseCredentialName(s); err == nil || !n.IsZero() {
			t.Errorf("%q is accepted", s)
		}
	}
}

func TestReposAreReadInOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"github.com/acme/widgets": "github.com/acme/widgets", "github.com/Acme/Widgets.git": "github.com/acme/widgets", "GitHub.com/acme/widgets/": "github.com/acme/widgets",
		"gitlab.test/a/b/c/d": "gitlab.test/a/b/c/d", "git.test/one": "git.test/one", "git.test/~user/x+y_z.w-v": "git.test/~user/x+y_z.w-v", "github.com/acme/.github": "github.com/acme/.github",
		"github.com/acme/widgets.wiki": "github.com/acme/widgets.wiki", "github.com/acme/git": "github.com/acme/git",
	} {
		r, err := gate.ParseRepo(in)
		if err != nil || r.String() != want || r.IsZero() {
			t.Errorf("%q: %q, %v", in, r, err)
			continue
		}
		if again, err := gate.ParseRepo(r.String()); err != nil || again != r || again.Host() != r.Host() || again.Path() != r.Path() {
			t.Errorf("%q prints as %q, which parses as %q, %v", in, r, again, err)
		}
	}
	for _, s := range []string{
		"", "github.com", "github.com/", "/acme/widgets", "acme", "1.2.3.4/acme/widgets", "github.com/.git", "github.com//", "github.com/a//b", "github.com/../b", "github.com/a/..", "github.com/./b", "github.com/a/.",
		"github.com/-x/b", "github.com/a/-upload-pack=x", "github.com/a/--exec", "github.com/a/.git/hooks", "github.com/a/.GIT/x", "github.com/a b/c", "github.com/a/b?c", "github.com/a/b#c", "github.com/a/b%2fc", "github.com/a\\b", "github.com/a/b;c",
		"github.com/a/b:c", "github.com/a/b\x00", "github.com/a/ü", "github.com/a/b\n", "https://github.com/a/b", "git@github.com:a/b", "github.com:443/a/b", "user@github.com/a/b",
		"github.com/a/b.git.git", "github.com/a/b.GIT", "github.com/a/b.GIT.git", "github.com/a/b.Git/", "github.com/" + strings.Repeat("a/", 600) + "b",
	} {
		if r, err := gate.ParseRepo(s); err == nil || !r.IsZero() {
			t.Errorf("%q is accepted as %q", s, r)
		} else {
			reason(t, err)
		}
	}
	if _, err := gate.NewRepo(gate.Host{}, "a/b"); err == nil {
		t.Error("a repository without a host")
	}
}

func FuzzParseRepo(f *testing.F) {
	for _, s := range []string{"github.com/acme/widgets", "github.com/a/b.git", "github.com/a/b.git.git", "h/.git", "h/a/../b", "h/-a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := gate.ParseRepo(s)
		if err != nil {
			return
		}
		if again, err := gate.ParseRepo(r.String()); err != nil || again != r {
			t.Fatalf("%q prints as %q, which parses as %q, %v", s, r, again, err)
		}
		if with, err := gate.ParseRepo(r.String() + ".git"); err != nil || with != r {
			t.Fatalf("%q with .git is %q, %v", r, with, err)
		}
		if _, err := gate.ParsePath("/" + r.Path() + "/info/refs"); err != nil {
			t.Fatalf("%q cannot be asked for: %v", r, err)
		}
	})
}

func TestIDsAreDistinctAndTypeable(t *testing.T) {
	form := regexp.MustCompile(`^[se][0-9a-hjkmnp-tv-z]{16}$`)
	rapid.Check(t, func(t *rapid.T) {
		var a, b [10]byte
		copy(a[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "a"))
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "b"))
		if s := gate.NewSessionID(a); !form.MatchString(s.String()) || s.IsZero() {
			t.Fatalf("%q", s)
		}
		if (a == b) != (gate.NewEventID(a) == gate.NewEventID(b)) {
			t.Fatalf("%x and %x", a, b)
		}
	})
}

func TestEveryReasonIsExplainedOnce(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(\.[a-z_]+)?$`)
	seen := map[gate.Reason]bool{}
	for _, i := range gate.Reasons() {
		if seen[i.Code] {
			t.Errorf("%s is explained twice", i.Code)
		}
		seen[i.Code] = true
		if !form.MatchString(string(i.Code)) || i.Meaning == "" {
			t.Errorf("%q: %q", i.Code, i.Meaning)
		}
		if got := i.Code.Info(); got != i {
			t.Errorf("%s finds %+v", i.Code, got)
		}
	}
	if got := gate.Reason("x.y").Info(); got.Code != "x.y" || got.Meaning == "" {
		t.Errorf("an unknown code explains itself as %+v", got)
	}
}

func TestFailureUnwraps(t *testing.T) {
	err := error(&gate.Failure{Reason: gate.ReasonDial, Detail: "refused", Err: io.EOF})
	if !errors.Is(err, io.EOF) || err.Error() != "upstream.unreachable: refused" {
		t.Errorf("got %v", err)
	}
}
