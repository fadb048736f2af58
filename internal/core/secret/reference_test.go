package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// reference says what a redactor must do, slowly and by other means: every spelling is tried at every place with every escape.
type reference struct{ patterns [][][]string } // pattern → character → its alternatives

func newReference(secrets ...string) *reference {
	r := &reference{}
	for _, s := range secrets {
		if len(s) < MinLen {
			continue
		}
		spelled := []string{s, hex.EncodeToString([]byte(s)), fmt.Sprintf("%X", s)}
		if utf8.ValidString(s) {
			var big, little string
			for _, u := range utf16.Encode([]rune(s)) {
				big += string([]byte{byte(u >> 8), byte(u)})
				little += string([]byte{byte(u), byte(u >> 8)})
			}
			spelled = append(spelled, big, little)
		}
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for before := range 3 {
				spelled = append(spelled, determined(enc, s, before))
			}
		}
		for _, p := range spelled {
			r.patterns = append(r.patterns, characters(p))
		}
	}
	return r
}

// determined is the base64 of s behind some bytes, reduced to the characters that do not depend on what stands around s.
func determined(enc *base64.Encoding, s string, before int) string {
	zeros := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + s + "\x00\x00\x00"))
	ones := enc.EncodeToString([]byte(strings.Repeat("\xff", before) + s + "\xff\xff\xff"))
	var same []byte
	for i := range zeros {
		if zeros[i] == ones[i] {
			same = append(same, zeros[i])
		}
	}
	return string(same)
}

func characters(p string) [][]string {
	var list [][]string
	for len(p) > 0 {
		r, n := utf8.DecodeRuneInString(p)
		alternatives := []string{""}
		for _, c := range []byte(p[:n]) {
			var longer []string
			for _, a := range alternatives {
				longer = append(longer, a+string([]byte{c}))
				for _, x := range cases(fmt.Sprintf("%02x", c)) {
					longer = append(longer, a+"%"+x)
				}
			}
			alternatives = longer
		}
		if p[0] == ' ' {
			alternatives = append(alternatives, "+")
		}
		if short := map[string]string{"\"": `\"`, "\\": `\\`, "/": `\/`, "\b": `\b`, "\f": `\f`, "\n": `\n`, "\r": `\r`, "\t": `\t`, "'": `\'`}[p[:n]]; short != "" {
			alternatives = append(alternatives, short)
		}
		if valid := r != utf8.RuneError || n > 1; valid && r <= 0xffff {
			for _, x := range cases(fmt.Sprintf("%04x", r)) {
				alternatives = append(alternatives, `\u`+x)
			}
		} else if valid {
			hi, lo := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
			for _, x := range cases(fmt.Sprintf("%04x", hi)) {
				for _, y := range cases(fmt.Sprintf("%04x", lo)) {
					alternatives = append(alternatives, `\u`+x+`\u`+y)
				}
			}
		}
		list, p = append(list, alternatives), p[n:]
	}
	return list
}

// cases lists hex digits in every mixture of cases.
func cases(s string) []string {
	list := []string{""}
	for _, c := range s {
		lower, upper := string(c), strings.ToUpper(string(c))
		var longer []string
		for _, x := range list {
			longer = append(longer, x+lower)
			if upper != lower {
				longer = append(longer, x+upper)
			}
		}
		list = longer
	}
	return list
}

// at matches a pattern at the beginning of s: the longest match, and whether more bytes could make one.
func at(pattern [][]string, s string) (longest int, alive bool) {
	ends := map[int]bool{0: true}
	for _, alternatives := range pattern {
		next := map[int]bool{}
		for end := range ends {
			for _, a := range alternatives {
				rest := s[end:]
				if strings.HasPrefix(rest, a) {
					next[end+len(a)] = true
				} else if strings.HasPrefix(a, rest) {
					alive = true
				}
			}
		}
		ends = next
	}
	for end := range ends {
		longest = max(longest, end)
	}
	return longest, alive
}

// mask is s redacted in one piece, and the number of runs.
func (r *reference) mask(s string) (string, int) {
	covered := make([]bool, len(s)+1)
	for i := range len(s) {
		for _, p := range r.patterns {
			n, _ := at(p, s[i:])
			for k := i; k < i+n; k++ {
				covered[k] = true
			}
		}
	}
	out, runs := []byte(s), 0
	for i := range out {
		if covered[i] {
			out[i] = '*'
			if !covered[i+1] {
				runs++
			}
		}
	}
	return string(out), runs
}

// held is how many bytes at the end of s may be the beginning of a match.
func (r *reference) held(s string) int {
	for i := range len(s) {
		for _, p := range r.patterns {
			if _, alive := at(p, s[i:]); alive {
				return len(s) - i
			}
		}
	}
	return 0
}

// secretText draws secrets of the kinds that credentials have, and of kinds chosen to confuse: few letters, escapes, spaces, text that is no UTF-8.
func secretText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[A-Za-z0-9_\-]{8,40}`),
		rapid.StringMatching(`[ -~]{8,24}`),
		rapid.StringMatching(`[ab]{8,12}`),
		rapid.StringMatching(`[%25cC\\]{8,14}`),
		rapid.StringMatching(`[a \\/"+%]{8,12}`),
		rapid.Custom(func(t *rapid.T) string {
			return rapid.StringOfN(rapid.RuneFrom([]rune{'a', 'é', '€', '😀', '\ufffd', '\n'}), 8, 10, -1).Draw(t, "runes")
		}),
		rapid.Custom(func(t *rapid.T) string {
			return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0x80, 0xc3, 0xa9, 0xff, 'x'}), 8, 12).Draw(t, "bytes"))
		}),
	)
}

// planted draws one spelling of a secret with some of its characters escaped, or a piece of it.
func planted(secret string) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		patterns := newReference(secret).patterns
		p := patterns[rapid.IntRange(0, len(patterns)-1).Draw(t, "spelling")]
		escape := rapid.IntRange(0, 3).Draw(t, "escape") // in how many of ten characters, about
		var b strings.Builder
		for _, alternatives := range p {
			k := 0
			if rapid.IntRange(0, 9).Draw(t, "d") < escape*3 {
				k = rapid.IntRange(0, len(alternatives)-1).Draw(t, "alternative")
			}
			b.WriteString(alternatives[k])
		}
		s := b.String()
		if rapid.IntRange(0, 2).Draw(t, "part") == 0 {
			from := rapid.IntRange(0, len(s)).Draw(t, "from")
			s = s[from:rapid.IntRange(from, len(s)).Draw(t, "to")]
		}
		return s
	})
}

// traffic draws text in which pieces of the secrets stand among other bytes.
func traffic(secrets []string) *rapid.Generator[string] {
	noise := rapid.OneOf(rapid.StringMatching(`[ab%25\\u0*+ ]{0,6}`), rapid.StringMatching(`[ -~\n]{0,12}`), rapid.Just(""))
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		for range rapid.IntRange(0, 4).Draw(t, "pieces") {
			b.WriteString(noise.Draw(t, "noise"))
			b.WriteString(planted(rapid.SampledFrom(secrets).Draw(t, "secret")).Draw(t, "planted"))
		}
		b.WriteString(noise.Draw(t, "noise"))
		return b.String()
	})
}

func redactorOf(secrets ...string) *Redactor {
	var vs []Value
	for _, s := range secrets {
		vs = append(vs, New("test", []byte(s)))
	}
	return NewRedactor(vs...)
}

func TestRedactorEqualsTheReferenceUnderAnyChunking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := rapid.SliceOfN(secretText(), 1, 3).Draw(t, "secrets")
		text := traffic(secrets).Draw(t, "text")
		want, runs := newReference(secrets...).mask(text)
		r := redactorOf(secrets...)

		if got, n := r.Bytes([]byte(text)); string(got) != want || n != runs {
			t.Fatalf("in one piece: %d runs, want %d\ngot  %q\nwant %q", n, runs, got, want)
		}
		if got := r.String(text); got != want {
			t.Fatalf("String: %q", got)
		}
		s := r.Stream()
		var out []byte
		for _, chunk := range chunks(t, text) {
			out = s.Write(out, []byte(chunk))
		}
		out = s.Flush(out)
		if string(out) != want || s.Hits() != int64(runs) {
			t.Fatalf("stream: %d runs, want %d\ngot  %q\nwant %q", s.Hits(), runs, out, want)
		}
		src := &source{chunks: chunks(t, text), withEOF: rapid.Bool().Draw(t, "eof with data")}
		reader := r.Reader(src)
		if got := drain(t, reader, rapid.SampledFrom([]int{1, 3, 64, 511, 600, 4096}).Draw(t, "buffer")); got != want || reader.Hits() != int64(runs) {
			t.Fatalf("reader: %d runs, want %d\ngot  %q\nwant %q", reader.Hits(), runs, got, want)
		}
	})
}

func TestNoByteIsHeldThatCannotBePartOfAMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := rapid.SliceOfN(secretText(), 1, 2).Draw(t, "secrets")
		text := traffic(secrets).Draw(t, "text")
		ref := newReference(secrets...)
		s := redactorOf(secrets...).Stream()
		fed, released := 0, 0
		for _, chunk := range chunks(t, text) {
			released += len(s.Write(nil, []byte(chunk)))
			fed += len(chunk)
			if want := ref.held(text[:fed]); fed-released != want {
				t.Fatalf("%d bytes held of %q, want %d", fed-released, text[:fed], want)
			}
		}
	})
}

func chunks(t *rapid.T, s string) []string {
	var list []string
	size := rapid.SampledFrom([]int{1, 2, 7, 40, 1000}).Draw(t, "chunk size")
	for s != "" {
		n := min(len(s), rapid.IntRange(1, size).Draw(t, "chunk"))
		list, s = append(list, s[:n]), s[n:]
	}
	return list
}

func FuzzRedactor(f *testing.F) {
	f.Add("sk-ant-api03-abcdef", "Authorization: Bearer sk-ant-api03-abcdef\r\n", uint8(3))
	f.Add("pass word/+%\\\"", `{"k":"pass\u0020word\/%2B%25\\\""}`, uint8(1))
	f.Add("aaaaaaaaa", "aaaaaaaa%61aaaaaaaaaaaaaaa%6", uint8(5))
	f.Add("%25%25%25%25", "%2525%2525%25%25%25%25252525", uint8(2))
	f.Add("é😀é😀", `\u00e9\ud83d\ude00\u00e9\ud83d\ude00 é%F0%9F%98%80`, uint8(4))
	f.Fuzz(func(t *testing.T, secret, text string, size uint8) {
		if len(secret) > 24 || len(text) > 300 {
			return
		}
		want, runs := newReference(secret).mask(text)
		s := redactorOf(secret).Stream()
		var out []byte
		for p := range slices.Chunk([]byte(text), int(size)+1) {
			out = s.Write(out, p)
		}
		out = s.Flush(out)
		if string(out) != want || s.Hits() != int64(runs) {
			t.Fatalf("secret %q, text %q\ngot  %q (%d)\nwant %q (%d)", secret, text, out, s.Hits(), want, runs)
		}
		if len(secret) >= MinLen && bytes.Contains(out, []byte(secret)) && strings.Trim(secret, "*") != "" {
			t.Fatalf("the secret %q is in %q", secret, out)
		}
	})
}
