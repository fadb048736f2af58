package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source gives its chunks one a Read, as a network does.
type source struct {
	chunks  []string
	err     error // after the chunks; nil is io.EOF
	withEOF bool  // the error comes with the last chunk
	closed  bool
}

func (s *source) Read(p []byte) (int, error) {
	end := s.err
	if end == nil {
		end = io.EOF
	}
	if len(s.chunks) == 0 {
		return 0, end
	}
	n := copy(p, s.chunks[0])
	if s.chunks[0] = s.chunks[0][n:]; s.chunks[0] == "" {
		s.chunks = s.chunks[1:]
		if len(s.chunks) == 0 && s.withEOF {
			return n, end
		}
	}
	return n, nil
}

func (s *source) Close() error { s.closed = true; return nil }

type fatal interface {
	Helper()
	Fatalf(string, ...any)
}

// drain reads to the end with a buffer of n bytes.
func drain(t fatal, r io.Reader, n int) string {
	t.Helper()
	var out strings.Builder
	buf := make([]byte, n)
	for {
		k, err := r.Read(buf)
		out.Write(buf[:k])
		if err == io.EOF {
			return out.String()
		}
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if k == 0 {
			t.Fatalf("read nothing without an error")
		}
	}
}

// encodings are what servers that echo a request are known to answer with.
func encodings(s string) map[string]string {
	escapeAll := func(format func(b byte) string) string {
		var b strings.Builder
		for i := range len(s) {
			b.WriteString(format(s[i]))
		}
		return b.String()
	}
	js, _ := json.Marshal(s)
	m := map[string]string{
		"raw":                 s,
		"basic":               base64.StdEncoding.EncodeToString([]byte("x-access-token:" + s)),
		"query":               url.QueryEscape(s),
		"path":                url.PathEscape(s),
		"json":                string(js[1 : len(js)-1]),
		"json, php":           strings.ReplaceAll(string(js[1:len(js)-1]), "/", `\/`),
		"every byte, percent": escapeAll(func(b byte) string { return "%" + hex.EncodeToString([]byte{b}) }),
		"every byte, PERCENT": escapeAll(func(b byte) string { return "%" + strings.ToUpper(hex.EncodeToString([]byte{b})) }),
		"every byte, json":    escapeAll(func(b byte) string { return `\u00` + hex.EncodeToString([]byte{b}) }),
		"every other byte": escapeAll(func(b byte) string {
			return map[bool]string{true: "%" + hex.EncodeToString([]byte{b}), false: string(b)}[b%2 == 0]
		}),
		"hex":              hex.EncodeToString([]byte(s)),
		"HEX":              strings.ToUpper(hex.EncodeToString([]byte(s))),
		"basic in json":    strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("u:"+s)), "/", `\/`),
		"basic in a query": url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("us:" + s))),
	}
	for before := range 3 {
		text := strings.Repeat("x", before) + s + "yz"
		m["base64 std "+string(rune('0'+before))] = base64.StdEncoding.EncodeToString([]byte(text))
		m["base64 url "+string(rune('0'+before))] = base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	return m
}

func TestEveryEncodingOfAnEchoedSecretIsOverwritten(t *testing.T) {
	for _, secret := range []string{canary(t, 8), canary(t, 40), "sk-" + canary(t, 100), canary(t, 6) + `/+=&<>"\ %` + canary(t, 6)} {
		r := redactorOf(canary(t, 30), secret)
		for name, text := range encodings(secret) {
			body := `{"headers":{"x":"` + text + `"}}` + "\n"
			for size := 1; size <= len(body); size += 1 + size/4 {
				var parts []string
				for rest := body; rest != ""; {
					n := min(size, len(rest))
					parts, rest = append(parts, rest[:n]), rest[n:]
				}
				x := r.Reader(&source{chunks: parts})
				got := drain(t, x, 700)
				if len(got) != len(body) {
					t.Fatalf("%s: the length changed from %d to %d", name, len(body), len(got))
				}
				if !strings.HasPrefix(got, `{"headers":{"x":"`) || !strings.HasSuffix(got, "\"}}\n") {
					t.Errorf("%s: what stands around the secret changed: %q", name, got)
				}
				if x.Hits() != 1 {
					t.Errorf("%s in chunks of %d: %d runs overwritten", name, size, x.Hits())
				}
				// In base64 a character at each end may hold bits of what stands around the secret too; it is left, with at most four bits of the secret.
				stars := strings.Count(got, "*")
				if least := (8*len(secret) - 10) / 6; !strings.Contains(name, "bas") && stars != len(text) || stars < min(least, len(text)) {
					t.Errorf("%s in chunks of %d: %d of %d characters are overwritten", name, size, stars, len(text))
				}
			}
		}
	}
}

func TestOtherBytesPassUnchanged(t *testing.T) {
	r := redactorOf(canary(t, 40))
	text := strings.Repeat(`data: {"type":"delta","text":"a \"quoted\" \u00e9 100% of %41%42 sk-ant"}`+"\n\n", 2000)
	if got := drain(t, r.Reader(&source{chunks: []string{text}}), 32<<10); got != text {
		t.Error("text without the secret was changed")
	}
	b := []byte(text)
	if got, n := r.Bytes(b); n != 0 || &got[0] != &b[0] {
		t.Error("Bytes copies what it does not change")
	}
}

func TestZeroRedactorPassesEverything(t *testing.T) {
	secret := canary(t, 20)
	for name, r := range map[string]*Redactor{"nil": nil, "zero": {}, "none": NewRedactor(), "zero value": NewRedactor(Value{}), "too short": redactorOf(secret[:MinLen-1])} {
		if !r.IsZero() {
			t.Errorf("%s: is not zero", name)
		}
		if got := r.String(secret); got != secret {
			t.Errorf("%s: String changed it", name)
		}
		s := r.Stream()
		if got := string(s.Flush(s.Write(nil, []byte(secret)))); got != secret {
			t.Errorf("%s: Stream changed it", name)
		}
		if got := drain(t, r.Reader(&source{chunks: []string{secret}}), 7); got != secret {
			t.Errorf("%s: Reader changed it", name)
		}
		r.Wipe()
	}
}

func TestRedactorsCompose(t *testing.T) {
	a, b := canary(t, 20), canary(t, 30)
	inner := redactorOf(a).Reader(&source{chunks: []string{"<" + a + "|" + b + ">"}})
	if got, want := drain(t, redactorOf(b).Reader(inner), 4096), "<"+strings.Repeat("*", 20)+"|"+strings.Repeat("*", 30)+">"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestEventPassesAtOnce(t *testing.T) {
	pr, pw := io.Pipe()
	x := redactorOf("sk-" + canary(t, 40)).Reader(pr)
	buf := make([]byte, 32<<10)
	for _, event := range []string{"data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n", ": ping\n\n"} {
		go pw.Write([]byte(event)) // nothing follows: Read must not wait for more
		n, err := x.Read(buf)
		if err != nil || string(buf[:n]) != event {
			t.Fatalf("read %q, %v", buf[:n], err)
		}
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

func TestReadWaitsWhileAllIsHeld(t *testing.T) {
	secret := canary(t, 40)
	x := redactorOf(secret).Reader(&source{chunks: []string{secret[:10], secret[10:39], secret[39:] + "!"}})
	buf := make([]byte, 4096)
	n, err := x.Read(buf)
	if got := string(buf[:n]); err != nil || got != strings.Repeat("*", 40)+"!" {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestPartOfASecretAtTheEndIsReleased(t *testing.T) {
	secret := canary(t, 40)
	x := redactorOf(secret).Reader(&source{chunks: []string{"<!>" + secret[:12]}})
	if got := drain(t, x, 4096); got != "<!>"+secret[:12] {
		t.Errorf("%d bytes came through", len(got))
	}
}

func TestHeldBytesDoNotStayInTheCallersBuffer(t *testing.T) {
	secret := canary(t, 40)
	x := redactorOf(secret).Reader(&source{chunks: []string{"<!>" + secret[:30], secret[30:]}})
	buf := make([]byte, 4096)
	n, err := x.Read(buf)
	if err != nil || n != 3 {
		t.Fatalf("read %d, %v", n, err)
	}
	if bytes.Contains(buf, []byte(secret[:8])) {
		t.Error("the buffer holds the beginning of the secret beyond what was read")
	}
	s := redactorOf(secret).Stream()
	if out := s.Write(make([]byte, 0, 100), []byte("<!>"+secret[:30])); bytes.Contains(out[:cap(out)], []byte(secret[:8])) {
		t.Error("the slice holds the beginning of the secret beyond its length")
	}
}

func TestSourceErrorComesAfterTheBytes(t *testing.T) {
	boom := errors.New("boom")
	for _, with := range []bool{false, true} {
		src := &source{chunks: []string{"<!>"}, err: boom, withEOF: with}
		x := redactorOf(canary(t, 20)).Reader(src)
		buf := make([]byte, 1000)
		n, err := x.Read(buf)
		if string(buf[:n]) != "<!>" || err != nil {
			t.Errorf("read %q, %v", buf[:n], err)
		}
		for range 2 {
			if n, err := x.Read(buf); n != 0 || err != boom {
				t.Errorf("then %d, %v", n, err)
			}
		}
		if err := x.Close(); err != nil || !src.closed {
			t.Error("closing the reader does not close the source")
		}
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }
func (stuck) Close() error             { return nil }

func TestStuckSourceIsNoEndlessLoop(t *testing.T) {
	if _, err := redactorOf(canary(t, 20)).Reader(stuck{}).Read(make([]byte, 1000)); err != io.ErrNoProgress {
		t.Errorf("got %v", err)
	}
}

func TestWipedRedactorFailsClosed(t *testing.T) {
	secret := canary(t, 20)
	r := redactorOf(secret)
	s, x := r.Stream(), r.Reader(&source{chunks: []string{"<!>", secret, "!!!"}})
	if got := string(s.Write(nil, []byte("<!>"))); got != "<!>" {
		t.Fatalf("got %q", got)
	}
	buf := make([]byte, 1000)
	if n, err := x.Read(buf); n != 3 || err != nil {
		t.Fatalf("read %d, %v", n, err)
	}
	r.Wipe()
	if got := string(s.Flush(s.Write(nil, []byte(secret)))); got != strings.Repeat("*", 20) {
		t.Error("a wiped redactor lets bytes through")
	}
	if n, err := x.Read(buf); n != 0 || !errors.Is(err, ErrWiped) {
		t.Errorf("read %d, %v", n, err)
	}
	if got := r.String("<!>"); got != "***" {
		t.Errorf("got %q", got)
	}
	for _, n := range r.ix.needles {
		if !bytes.Equal(n, make([]byte, len(n))) {
			t.Error("a pattern is still in memory")
		}
	}
}

func TestRedactorServesManyStreamsAtOnce(t *testing.T) {
	secret := canary(t, 40)
	r := redactorOf(secret)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for size := 1; size < 60; size++ {
				text := strings.Repeat("x", size) + secret + strings.Repeat("y", size)
				got := drain(t, r.Reader(&source{chunks: []string{text[:size+20], text[size+20:]}}), 50+size)
				if got != strings.Replace(text, secret, strings.Repeat("*", 40), 1) {
					t.Error("a stream came out wrong")
				}
			}
		})
	}
	wg.Wait()
}

func TestOverlappingSecretsAreWhollyOverwritten(t *testing.T) {
	long := canary(t, 30)
	r := redactorOf(long[:20], long[10:], long[4:12])
	for cut := range len(long) {
		s := r.Stream()
		got := string(s.Flush(s.Write(s.Write(nil, []byte("<"+long[:cut])), []byte(long[cut:]+">"))))
		if got != "<"+strings.Repeat("*", 30)+">" || s.Hits() != 1 {
			t.Errorf("cut at %d: %d runs, %q", cut, s.Hits(), got)
		}
	}
}

func TestLongSecretsAreFoundInSmallBuffers(t *testing.T) {
	secret := canary(t, MaxLen)
	r := redactorOf(secret)
	var all strings.Builder
	for i := range len(secret) {
		all.WriteString("%" + hex.EncodeToString([]byte{secret[i]}))
	}
	for name, text := range map[string]string{"raw": secret, "percent": all.String()} {
		var parts []string
		for rest := text; rest != ""; {
			n := min(1400, len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		if got := drain(t, r.Reader(&source{chunks: parts}), 1000); got != strings.Repeat("*", len(text)) {
			t.Errorf("%s: a secret of %d bytes came through", name, len(secret))
		}
	}
}

func TestWideSpellingsAreOverwritten(t *testing.T) {
	const secret = "tok-\u00e9-0123456789-\U0001f511"
	r := NewRedactor(New("t", []byte(secret)))
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		text := []byte("\xff\xfe a")
		for _, u := range utf16.Encode([]rune(secret)) {
			text = order.AppendUint16(text, u)
		}
		masked, n := r.Bytes(append(text, "b"...))
		if n != 1 || strings.Trim(string(masked[4:len(masked)-1]), "*") != "" {
			t.Errorf("%v: %q", order, masked)
		}
	}
}
