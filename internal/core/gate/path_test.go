package gate_test

import (
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func TestParsePathKeepsTheBytes(t *testing.T) {
	for in, want := range map[string]struct {
		decoded string
		slash   bool
		query   string
		hasQ    bool
	}{
		"/":                       {decoded: "/"},
		"/?":                      {decoded: "/", hasQ: true},
		"/a/b/":                   {decoded: "/a/b/"},
		"/a?b=c?d=/../%2e%2e\\":   {decoded: "/a", query: `b=c?d=/../%2e%2e\`, hasQ: true},
		"/%61%2Db":                {decoded: "/a-b"},
		"/J%C3%BCrgen%20M":        {decoded: "/Jürgen M"},
		"/@acme%2fwidgets":        {decoded: "/@acme%2Fwidgets", slash: true},
		"/a%2F%2Fb":               {decoded: "/a%2F%2Fb", slash: true},
		"/...":                    {decoded: "/..."},
		"/.git/..a/b..":           {decoded: "/.git/..a/b.."},
		"/a;v=1/b;x=.;y":          {decoded: "/a;v=1/b;x=.;y"},
		"/100%25":                 {decoded: "/100%"},
		"/100%25/a":               {decoded: "/100%/a"},
		"/%25zz%25g1":             {decoded: "/%zz%g1"},
		"/a%3Fb%23c%3b":           {decoded: "/a?b#c;"},
		"/:~!$&'()*+,=@\"<>^`{|}": {decoded: "/:~!$&'()*+,=@\"<>^`{|}"},
	} {
		p, err := gate.ParsePath(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		raw, _, _ := strings.Cut(in, "?")
		q, hasQ := p.Query()
		if p.String() != in || p.Raw() != raw || p.Decoded() != want.decoded || p.EncodedSlash() != want.slash || q != want.query || hasQ != want.hasQ || p.IsZero() {
			t.Errorf("%q: raw %q, decoded %q, slash %v, query %q %v", in, p.Raw(), p.Decoded(), p.EncodedSlash(), q, hasQ)
		}
	}
}

func TestParsePathRefuses(t *testing.T) {
	for _, s := range []string{
		"", "a", "*", "a.test:443", "http://a.test/", "?a", "#", "\\a", " /a",
		// dot segments (D01)
		"/.", "/..", "/./", "/../", "/v1/../admin", "/v1/./admin", "/v1/..", "/v1/.", "/%2e", "/%2e%2e/", "/%2E%2E/admin", "/.%2e/", "/%2e./", "/a%2e", "/v1/%2e%2e/admin", "/%2e%2e%2fadmin",
		// slashes and what servers take for them (D02)
		"//", "//a", "/a//b", "/a//", "/a\\b", "/\\evil.test", "/a%5cb", "/a%5Cb", "/..%5c", "/..;/", "/..;x/admin", "/.;/a", "/a/..;x", "/;x/a", "/a/;/b", "/;", "/a/;x", "/a/..%2fadmin", "/a%2F..%2Fadmin", "/a%2F..", "/a%2f.", "/..%2f",
		"/a%2F..;x%2Fadmin", "/%2F..", "/a%2f.;%2f",
		// encodings
		"/%", "/%2", "/%zz", "/%2g", "/a%", "/%%2e", "/%252e", "/%252e%252e/", "/%25%32%65", "/%25%32e", "/%252%65", "/%25%32%46", "/%252F", "/%255c", "/%25%35%63", "/a%2541", "/%25%2541",
		"/%00", "/a%00b", "/%0a", "/%0d%0a", "/%1f", "/%7f", "/%09", "/%c0%ae", "/%c0%af", "/%e0%80%af", "/%ff", "/%c3", "/%ed%a0%80", "/a%80",
		// bytes that a target must encode
		"/a b", "/a\tb", "/a\r\nb", "/a\x00", "/a\x7f", "/ü", "/\xff", "/a#b", "/a?b#c", "/a?b c", "/a?b\x00", "/a?ü", "/a?\r\nX: y", "/a\u2215b", "/a\u2024\u2024/",
		"/" + strings.Repeat("a", gate.MaxTarget),
	} {
		p, err := gate.ParsePath(s)
		if err == nil || !p.IsZero() {
			t.Errorf("%q is accepted, decoded %q", s, p.Decoded())
		} else if r := reason(t, err); r != gate.ReasonMalformedPath {
			t.Errorf("%q: reason %s", s, r)
		}
	}
}

func TestWithQuery(t *testing.T) {
	p, err := gate.ParsePath("/a?b")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.WithQuery("c=d").String(); got != "/a?c=d" {
		t.Errorf("got %q", got)
	}
	if got := p.WithQuery("").String(); got != "/a" {
		t.Errorf("got %q", got)
	}
	if p.String() != "/a?b" {
		t.Errorf("the original became %q", p)
	}
}

type fataler interface{ Fatalf(string, ...any) }

// checkPath holds what must be true of everything that ParsePath accepts, against other readers of the same bytes.
func checkPath(t fataler, in string, p gate.Path) {
	if p.String() != in {
		t.Fatalf("%q prints as %q", in, p)
	}
	if again, err := gate.ParsePath(p.String()); err != nil || again != p {
		t.Fatalf("%q parses differently the second time: %v", in, err)
	}
	decoded, err := url.PathUnescape(p.Raw())
	if err != nil || !utf8.ValidString(decoded) {
		t.Fatalf("net/url refuses %q: %v", p.Raw(), err)
	}
	if plain := strings.ReplaceAll(p.Decoded(), "%2F", "/"); p.EncodedSlash() && plain != decoded || !p.EncodedSlash() && p.Decoded() != decoded {
		t.Fatalf("%q decodes to %q, net/url says %q", in, p.Decoded(), decoded)
	}
	// No reading of the path may have another meaning: decoded again, cleaned, or without parameters.
	if twice, err := url.PathUnescape(decoded); err == nil && twice != decoded && strings.Contains(decoded, "%") {
		t.Fatalf("%q can be decoded twice: %q", in, twice)
	}
	if clean := path.Clean(p.Decoded()); clean != strings.TrimSuffix(p.Decoded(), "/") && p.Decoded() != "/" {
		t.Fatalf("%q cleans to %q", p.Decoded(), clean)
	}
	for seg := range strings.SplitSeq(decoded, "/") {
		if name, _, _ := strings.Cut(seg, ";"); name == "." || name == ".." {
			t.Fatalf("%q holds a dot segment once decoded", in)
		}
	}
	if strings.ContainsAny(decoded, "\\\x00\r\n\t\x7f") {
		t.Fatalf("%q holds a byte that it must not", decoded)
	}
	u, err := url.ParseRequestURI(in)
	if err != nil || u.Host != "" || u.EscapedPath() == "" || u.Path != decoded {
		t.Fatalf("net/url reads %q as %+v, %v", in, u, err)
	}
}

func TestEveryAcceptedPathHasOneReading(t *testing.T) {
	piece := rapid.SampledFrom([]string{"/", "/", "/", "a", ".", "..", ";", "%", "%2e", "%2f", "%2F", "%5c", "%25", "2", "e", "%32", "%65", "%41", "?", "\\", "%c3%bc", "%c0", "b"})
	rapid.Check(t, func(t *rapid.T) {
		in := "/" + strings.Join(rapid.SliceOfN(piece, 0, 10).Draw(t, "pieces"), "")
		if p, err := gate.ParsePath(in); err == nil {
			checkPath(t, in, p)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"/", "/a/b?c", "/%2e", "/a%2fb", "/..;/", "//", "/%25%32%65", "/a%2F..%2Fb", "/%c3%bc", "/;x", "/a;b=c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := gate.ParsePath(s)
		if err != nil {
			if !p.IsZero() {
				t.Fatalf("an error and %q", p)
			}
			reason(t, err)
			return
		}
		checkPath(t, s, p)
	})
}
