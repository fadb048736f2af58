package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestScalarsAreReadAsTheyAreWritten(t *testing.T) {
	n, err := Parse("x", []byte("a: 0123\nb: yes\nc: 1e3\nd: 'it''s'\ne: \"q\\\"\"\nf: 600/min\ng: 0x10\nh: 2026-01-01\ni: |\n  one\n  two\n"))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"a": "0123", "b": "yes", "c": "1e3", "d": "it's", "e": `q"`, "f": "600/min", "g": "0x10", "h": "2026-01-01", "i": "one\ntwo\n"} {
		if got := n.Get(key); got == nil || got.Text != want {
			t.Errorf("%s: %+v, want %q", key, got, want)
		}
	}
}

func TestEveryNodeKnowsItsPlace(t *testing.T) {
	n, err := Parse("x", []byte("a:\n  b: [1, {c: d}]\ne:\n  - f\n  - g: h\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node *Node
		want Pos
	}{
		{n, Pos{1, 1}}, {n.Get("a"), Pos{2, 3}}, {n.Get("a").Get("b"), Pos{2, 6}}, {n.Get("a").Get("b").Items[1].Get("c"), Pos{2, 14}},
		{n.Get("e").Items[0], Pos{4, 5}}, {n.Get("e").Items[1], Pos{5, 5}}, {n.Get("e").Items[1].Get("g"), Pos{5, 8}},
	} {
		if c.node.Pos != c.want {
			t.Errorf("%+v stands at %v, want %v", c.node, c.node.Pos, c.want)
		}
	}
}

func TestHostileFilesEndSoon(t *testing.T) {
	many := func(s string, n int) string { return strings.Repeat(s, n) }
	for name, src := range map[string]string{
		"flow":           many("[", 100_000),
		"flow maps":      many("{a: ", 30_000),
		"dashes":         many("- ", 60_000),
		"dash lines":     many("-\n", 60_000),
		"question marks": many("? ", 60_000),
		"colons":         many("a: ", 60_000),
		"indent":         staircase(600),
		"keys":           numbered(9_000),
		"one key":        many("a: b\n", 9_000),
		"items":          many("- a\n", 19_000),
		"quotes":         many(`"" `, 30_000),
		"comments":       many("# x\n", 90_000),
		"block":          "a: |\n" + many("  x\n", 60_000),
		"folded":         "a: >\n" + many("  x\n", 60_000),
		"plain":          "a: x\n" + many("  x\n", 60_000),
		"quoted":         "a: \"" + many("\\n", 100_000) + "\"",
		"spaces":         many(" ", 1<<20),
		"newlines":       many("\n", 1<<20),
		"tabs":           many("\t", 1<<20),
		"anchors":        many("&a ", 60_000),
		"bang":           many("!", 1<<20),
		"percent":        many("%\n", 60_000),
		"documents":      many("---\n", 60_000),
		"commas":         "[" + many(",", 90_000) + "]",
		"large":          many("a", 1<<20+1),
	} {
		start := time.Now()
		_, err := Parse("x", []byte(src))
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func staircase(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: v\n", i)
	}
	return b.String()
}

func TestManyErrorsAreCounted(t *testing.T) {
	var into struct {
		A bool `json:"a,omitempty"`
	}
	err := Decode("x", []byte(numbered(300)), &into)
	var es Errors
	if !errors.As(err, &es) || len(es) != maxErrors+1 || es[maxErrors].Msg != "and 250 errors more" {
		t.Errorf("%v", err)
	}
}

func TestErrorNamesPlaceAndHint(t *testing.T) {
	e := &Error{File: "postern.yaml", Line: 12, Col: 7, Msg: `unknown key "alow"`, Hint: `did you mean "allow"?`}
	const want = "postern.yaml:12:7: unknown key \"alow\"\n  hint: did you mean \"allow\"?"
	if e.Error() != want {
		t.Errorf("%q", e.Error())
	}
}

func TestLooksSecret(t *testing.T) {
	const run = "Ab3dEf6hIj9kLm2n"
	for _, s := range []string{"sk-" + run, "Bearer ghp_" + run, "x=AKIA" + run, "eyJ" + run, "a\n-----BEGIN RSA PRIVATE KEY-----\n"} {
		if !LooksSecret(s) {
			t.Errorf("%q is not recognised", s)
		}
	}
	for _, s := range []string{"", "sk-ant-api03-{base64url:95}", "github.com/acme/task-runner-for-all-widgets", "/v1/sk-models-for-everyone", "npm_config_cache", "ghp_short1", "desk-" + run} {
		if LooksSecret(s) {
			t.Errorf("%q is taken for a credential", s)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	names := []string{"allow", "credentials", "profiles", "use"}
	for in, want := range map[string]string{"alow": "allow", "Allow": "allow", "allwo": "allow", "credential": "credentials", "zzzzzz": "", "": ""} {
		got := DidYouMean(in, names)
		if want != "" {
			want = `did you mean "` + want + `"?`
		}
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The marker stands for a credential that was pasted anywhere; no error may repeat it.
const marker = "Zq7Xw9Kp3Lm5Vb8N"

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"version: 1\n", "a: MARK\nMARK: b\n", "a: 'MARK\n", "? MARK\n: x\n", "a: &MARK x\nb: *MARK\n", "a: !MARK x\n", "{a: [MARK, {b: c}], d: \"\\u202e\"}\n",
		"a: MARK: b\n", "a: |\n  MARK\n b\n", "---\na\n---\nb\n", "%MARK\n", "a:\n\t- MARK\n", "a: 1\na: MARK\n", "<<: MARK\n", "[MARK]: b\n", "- - - a\n", "\"a\": >-\n  x\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		text := strings.ReplaceAll(string(src), "MARK", marker)
		start := time.Now()
		n, err := Parse("x", []byte(text))
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err == nil {
			if d := deepest(n); d > MaxDepth {
				t.Errorf("%d levels", d)
			}
			return
		}
		if strings.Contains(err.Error(), marker) {
			t.Errorf("the error repeats the file: %v", err)
		}
	})
}

func deepest(n *Node) int {
	most := 0
	for _, p := range n.Pairs {
		most = max(most, deepest(p.Value))
	}
	for _, i := range n.Items {
		most = max(most, deepest(i))
	}
	return most + 1
}
