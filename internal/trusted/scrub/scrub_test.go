package scrub

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func token(t testing.TB) string {
	t.Helper()
	b := make([]byte, 20)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return "tok-" + hex.EncodeToString(b)
}

func redactor(value string) *secret.Redactor {
	return secret.NewRedactor(secret.New("key", []byte(value)))
}

// answer is a response as egress gives it.
func answer(body io.Reader, header http.Header) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(body), ContentLength: -1,
		Request: &http.Request{Method: http.MethodGet}}
}

func reason(err error) gate.Reason {
	var f *gate.Failure
	if errors.As(err, &f) {
		return f.Reason
	}
	if err != nil {
		return gate.ReasonBug
	}
	return gate.ReasonNone
}

func scrubbedText(t testing.TB, resp *http.Response, red *secret.Redactor) string {
	t.Helper()
	if err := Response(resp, red); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("after %d bytes: %v", len(b), err)
	}
	return string(b)
}

func compress(t testing.TB, coding, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip", "x-gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "bare deflate":
		w, err = flate.NewWriter(&b, 6)
	case "br":
		w = brotli.NewWriter(&b)
	case "zstd":
		w, err = zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
	}
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHeaderStatusAndTrailerAreMasked(t *testing.T) {
	value := token(t)
	resp := answer(strings.NewReader("you sent "+value), http.Header{
		"X-Echo": {"a", value, "Bearer " + value}, "Location": {"/next?key=" + url.QueryEscape(value)}, "X-B64": {base64.StdEncoding.EncodeToString([]byte(value))},
		value: {"in the name"}, "X-Plain": {"stays"}, "Content-Length": {"53"},
	})
	resp.Status, resp.ContentLength = "401 bad key "+value, 53
	resp.Trailer = http.Header{"X-End": nil}
	resp.Body = io.NopCloser(io.MultiReader(resp.Body, eof(func() { // trailers arrive with the body's end, announced or not
		resp.Trailer["X-End"] = []string{value}
		resp.Trailer["X-More"] = []string{value}
	})))
	body := scrubbedText(t, resp, redactor(value))
	var all bytes.Buffer
	resp.Header.Write(&all)
	resp.Trailer.Write(&all)
	if text := all.String() + resp.Status + body; strings.Contains(text, value) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(value))[:30]) {
		t.Error("the credential passes")
	}
	if resp.Header.Get("X-Plain") != "stays" || len(resp.Header["X-Echo"]) != 3 || resp.Header["X-Echo"][0] != "a" {
		t.Errorf("other fields were changed: %v", resp.Header)
	}
	if resp.ContentLength != 53 || len(body) != 53 || resp.Header.Get("Content-Length") != "53" {
		t.Errorf("%d bytes, header says %d", len(body), resp.ContentLength)
	}
	if _, ok := resp.Header[value]; ok || len(resp.Trailer) != 2 {
		t.Errorf("field names: %d header fields, %d trailer fields", len(resp.Header), len(resp.Trailer))
	}
}

// eof calls a function when it is read and is empty.
func eof(f func()) io.Reader { return readFunc(func([]byte) (int, error) { f(); return 0, io.EOF }) }

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestEveryCodingIsUndoneAndMasked(t *testing.T) {
	value := token(t)
	text := strings.Repeat("padding ", 5000) + "you sent " + value + strings.Repeat(" padding", 5000)
	for _, coding := range []string{"", "identity", "gzip", "x-gzip", "GZIP", "deflate", "bare deflate", "br", "zstd"} {
		name, raw := coding, []byte(text)
		if coding != "" && coding != "identity" {
			raw = compress(t, strings.ToLower(coding), text)
			name = strings.TrimPrefix(coding, "bare ")
		}
		for how, r := range map[string]io.Reader{"whole": bytes.NewReader(raw), "bytewise": iotest.OneByteReader(bytes.NewReader(raw)), "with EOF": iotest.DataErrReader(bytes.NewReader(raw))} {
			resp := answer(r, http.Header{"Content-Encoding": {name}, "Etag": {`"x"`}, "Content-Length": {"1"}, "Content-Md5": {"x"}})
			got := scrubbedText(t, resp, redactor(value))
			if got != strings.Replace(text, value, strings.Repeat("*", len(value)), 1) {
				t.Errorf("%s, %s: not the masked text (%d bytes)", coding, how, len(got))
			}
			decoded := coding != "" && coding != "identity"
			if decoded != (resp.Header.Get("Content-Encoding") == "" && resp.Header.Get("Content-Length") == "" && resp.Header.Get("Etag") == `W/"x"` && resp.Header.Get("Content-Md5") == "") {
				t.Errorf("%s: header %v", coding, resp.Header)
			}
			resp.Body.Close()
		}
	}
}

func TestWhatCannotBeSearchedIsRefused(t *testing.T) {
	red := redactor(token(t))
	for what, h := range map[string]http.Header{
		"unknown coding":     {"Content-Encoding": {"compress"}},
		"dictionary":         {"Content-Encoding": {"dcb"}},
		"encrypted":          {"Content-Encoding": {"aes128gcm"}},
		"two codings":        {"Content-Encoding": {"gzip, br"}},
		"two fields":         {"Content-Encoding": {"gzip", "gzip"}},
		"compressed gRPC":    {"Content-Type": {"application/grpc"}, "Grpc-Encoding": {"gzip"}},
		"compressed connect": {"Content-Type": {"application/connect+proto"}, "Connect-Content-Encoding": {"gzip"}},
	} {
		closed := false
		resp := answer(strings.NewReader("x"), h)
		resp.Body = closing{resp.Body, &closed}
		if err := Response(resp, red); reason(err) != gate.ReasonOpaqueEncoding || !closed {
			t.Errorf("%s: %v, closed %v", what, err, closed)
		}
	}
	part := answer(strings.NewReader("x"), http.Header{"Content-Encoding": {"gzip"}})
	part.StatusCode = http.StatusPartialContent
	if err := Response(part, red); reason(err) != gate.ReasonOpaqueEncoding {
		t.Errorf("a part of a compressed body: %v", err)
	}
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		resp := answer(strings.NewReader(""), http.Header{"Content-Encoding": {"compress"}})
		if resp.Request.Method = method; method == http.MethodGet {
			resp.StatusCode = http.StatusNotModified
		}
		if err := Response(resp, red); err != nil {
			t.Errorf("an answer without a body has no coding: %v", err)
		}
	}
}

type closing struct {
	io.ReadCloser
	closed *bool
}

func (c closing) Close() error { *c.closed = true; return c.ReadCloser.Close() }

func TestBombsAreDefused(t *testing.T) {
	red := redactor(token(t))
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		raw := compress(t, coding, strings.Repeat("\x00", 8<<20))
		resp := answer(bytes.NewReader(raw), http.Header{"Content-Encoding": {coding}})
		if err := Response(resp, red); err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if reason(err) != gate.ReasonOpaqueEncoding || n > int64(len(raw))*maxRatio+ratioFrom+64<<10 {
			t.Errorf("%s: %d bytes became %d: %v", coding, len(raw), n, err)
		}
		resp.Body.Close()
	}
}

func TestDamagedBodiesEndInAFailure(t *testing.T) {
	red := redactor(token(t))
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		raw := compress(t, coding, strings.Repeat("some text that repeats ", 100)+rand.Text())
		for what, b := range map[string][]byte{"cut": raw[:len(raw)-5], "garbage": append([]byte{0xff, 0xff, 0xff}, raw...), "flipped": flip(raw)} {
			resp := answer(bytes.NewReader(b), http.Header{"Content-Encoding": {coding}})
			if err := Response(resp, red); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); what != "flipped" && reason(err) != gate.ReasonUpstream || reason(err) == gate.ReasonBug {
				t.Errorf("%s, %s: %v", coding, what, err)
			}
			resp.Body.Close()
		}
		empty := answer(strings.NewReader(""), http.Header{"Content-Encoding": {coding}})
		if got := scrubbedText(t, empty, red); got != "" {
			t.Errorf("%s: an empty body became %q", coding, got)
		}
	}
	plain := answer(iotest.ErrReader(errors.New("read tcp 10.0.0.1:443: reset")), nil)
	if err := Response(plain, red); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, plain.Body); reason(err) != gate.ReasonUpstream || strings.Contains(err.Error(), "10.0.0.1") {
		t.Errorf("a broken source: %v", err)
	}
}

func flip(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)/2] ^= 0x55
	return b
}

// TestEventsArriveOneByOne: what the upstream has flushed is delivered before it sends more, in every coding that can flush.
func TestEventsArriveOneByOne(t *testing.T) {
	value := token(t)
	for _, coding := range []string{"", "gzip", "deflate", "br", "zstd"} {
		var sent bytes.Buffer
		w, flush := flusher(t, coding, &sent)
		src := make(feed, 1)
		resp := answer(&reader{src: src}, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {coding}})
		if err := Response(resp, redactor(value)); err != nil {
			t.Fatal(err)
		}
		event := "data: " + value + "\n\n"
		got := make([]byte, len(event))
		for range 5 {
			io.WriteString(w, event)
			if err := flush(); err != nil {
				t.Fatal(err)
			}
			src <- bytes.Clone(sent.Bytes())
			sent.Reset()
			if _, err := io.ReadFull(resp.Body, got); err != nil { // hangs if anything waits for the next event
				t.Fatalf("%s: %v", coding, err)
			}
			if want := "data: " + strings.Repeat("*", len(value)) + "\n\n"; string(got) != want {
				t.Errorf("%s: another event", coding)
			}
		}
		close(src)
		resp.Body.Close()
	}
}

func flusher(t *testing.T, coding string, to io.Writer) (io.Writer, func() error) {
	switch coding {
	case "gzip":
		z := gzip.NewWriter(to)
		return z, z.Flush
	case "deflate":
		z := zlib.NewWriter(to)
		return z, z.Flush
	case "br":
		z := brotli.NewWriter(to)
		return z, z.Flush
	case "zstd":
		z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return z, z.Flush
	}
	return to, func() error { return nil }
}

// feed is what an upstream has sent so far; reading beyond it waits.
type feed chan []byte

type reader struct {
	src  feed
	rest []byte
}

func (r *reader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		b, ok := <-r.src
		if !ok {
			return 0, io.EOF
		}
		r.rest = b
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func TestWithoutACredentialNothingIsTouched(t *testing.T) {
	body := io.NopCloser(strings.NewReader("x"))
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Encoding": {"dcb"}}, Body: body}
	if err := Response(resp, nil); err != nil || resp.Body != body {
		t.Errorf("changed: %v", err)
	}
}

func TestRequestAsksForWhatCanBeSearched(t *testing.T) {
	for accept, want := range map[string]string{
		"": "identity", "gzip, br": "identity", "gzip;q=1, identity;q=0": "gzip", "br, *;q=0": "gzip", "identity, *;q=0": "identity",
		"identity; q=0.000": "gzip", "identity;q=0.5, *;q=0": "identity", "*": "identity", "IDENTITY;Q=0": "gzip",
	} {
		r := &http.Request{Header: http.Header{"Range": {"bytes=0-9"}, "If-Range": {"x"}, "Sec-Websocket-Extensions": {"permessage-deflate"}, "A-Im": {"gzip"},
			"Grpc-Accept-Encoding": {"gzip"}, "X-Other": {"stays"}}}
		if accept != "" {
			r.Header.Set("Accept-Encoding", accept)
		}
		Request(r)
		if got := r.Header.Get("Accept-Encoding"); got != want {
			t.Errorf("%q: asks for %q, want %q", accept, got, want)
		}
		if len(r.Header) != 3 || r.Header.Get("Grpc-Accept-Encoding") != "identity" || r.Header.Get("X-Other") != "stays" {
			t.Errorf("%q: %v", accept, r.Header)
		}
	}
	bare := &http.Request{}
	Request(bare)
	if bare.Header.Get("Accept-Encoding") != "identity" {
		t.Error("a request without a header")
	}
}

func BenchmarkHeader(b *testing.B) {
	red := redactor(token(b))
	h := http.Header{"Content-Type": {"application/json"}, "Date": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "Server": {"cloudflare"}, "Request-Id": {"req_011CSHoEeqs5C35K2UUqR7Fy"},
		"Strict-Transport-Security": {"max-age=31536000; includeSubDomains; preload"}, "Cf-Ray": {"95d8b0a4eb8a1c2b-FRA"}, "Via": {"1.1 google"}}
	b.ReportAllocs()
	for b.Loop() {
		Header(h, red)
	}
}

// BenchmarkBody scrubs 64 MiB a time in reads of 32 KiB; the allocations are what a stream costs, whatever its length.
func BenchmarkBody(b *testing.B) {
	red := redactor(token(b))
	const size = 64 << 20
	text := make([]byte, 1<<20)
	rand.Read(text)
	for name, typ := range map[string]string{"stream": "text/plain", "grpc": "application/grpc"} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 32<<10)
			block := text
			if typ == "application/grpc" {
				block = envelope(text)
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				left, at := size, 0
				src := readFunc(func(p []byte) (int, error) {
					if left <= 0 {
						return 0, io.EOF
					}
					n := copy(p, block[at:])
					left -= n
					if at += n; at == len(block) {
						at = 0
					}
					return n, nil
				})
				resp := answer(src, http.Header{"Content-Type": {typ}})
				if err := Response(resp, red); err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
