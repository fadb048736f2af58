package scrub

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
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
	"pgregory.net/rapid"

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

func frameOf(opcode byte, fin bool, payload []byte) []byte {
	b := []byte{opcode}
	if fin {
		b[0] |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload...)
}

func envelope(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(payload))), payload...)
}

// conn is the connection of a 101.
type conn struct {
	io.Reader
	bytes.Buffer
	closed bool
}

func (c *conn) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (c *conn) Close() error               { c.closed = true; return nil }

func upgraded(r io.Reader, protocol string) (*http.Response, *conn) {
	c := &conn{Reader: r}
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: http.Header{"Upgrade": {protocol}, "Connection": {"Upgrade"}}, Body: c}, c
}

func TestWebSocketMessagesAreMaskedAcrossFrames(t *testing.T) {
	value := token(t)
	mask := strings.Repeat("*", len(value))
	big := strings.Repeat("x", 70_000)
	in := slices(
		frameOf(1, true, []byte("you sent "+value)),
		frameOf(1, false, []byte("you sent "+value[:7])), frameOf(9, true, []byte("ping "+value)), frameOf(0, false, nil), frameOf(0, false, []byte(value[7:20])), frameOf(0, true, []byte(value[20:]+" end")),
		frameOf(2, true, []byte(big+value)),
		frameOf(1, true, nil), frameOf(1, true, []byte(value[:10])), frameOf(8, true, append([]byte{3, 232}, value...)))
	want := slices(
		frameOf(1, true, []byte("you sent "+mask)),
		frameOf(1, false, []byte("you sent "+mask[:7])), frameOf(9, true, []byte("ping "+mask)), frameOf(0, false, nil), frameOf(0, false, []byte(mask[7:20])), frameOf(0, true, []byte(mask[20:]+" end")),
		frameOf(2, true, []byte(big+mask)),
		frameOf(1, true, nil), frameOf(1, true, []byte(value[:10])), frameOf(8, true, append([]byte{3, 232}, mask...)))
	for how, r := range map[string]io.Reader{"whole": bytes.NewReader(in), "bytewise": iotest.OneByteReader(bytes.NewReader(in))} {
		resp, c := upgraded(r, "websocket")
		if err := Response(resp, redactor(value)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes (%d for %d), %v", how, len(got), len(want), err)
		}
		io.WriteString(resp.Body.(io.Writer), "from the client")
		resp.Body.Close()
		if c.String() != "from the client" || !c.closed {
			t.Errorf("%s: the other direction", how)
		}
	}
}

func slices(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

// TestMessagesAreNotHeldBack: a reader that waits for the last byte of a message gets it, also when a secret might begin with it.
func TestMessagesAreNotHeldBack(t *testing.T) {
	value := token(t)
	for what, c := range map[string]struct {
		resp  func(io.Reader) *http.Response
		frame func([]byte) []byte
	}{
		"websocket": {func(r io.Reader) *http.Response { resp, _ := upgraded(r, "websocket"); return resp }, func(b []byte) []byte { return frameOf(2, true, b) }},
		"grpc": {func(r io.Reader) *http.Response {
			return answer(r, http.Header{"Content-Type": {"application/grpc+proto"}})
		}, envelope},
	} {
		pr, pw := io.Pipe()
		resp := c.resp(pr)
		if err := Response(resp, redactor(value)); err != nil {
			t.Fatal(err)
		}
		for n := 1; n < len(value); n++ {
			message := c.frame([]byte("ends in " + value[:n]))
			go pw.Write(message)
			got := make([]byte, len(message))
			if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.Equal(got, message) { // hangs when held back
				t.Fatalf("%s: %v", what, err)
			}
		}
		pw.Close()
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func TestGRPCMessagesAreMasked(t *testing.T) {
	value := token(t)
	mask := strings.Repeat("*", len(value))
	in := slices(envelope([]byte("\x0a\x05"+value)), envelope(nil), envelope([]byte("plain")))
	want := slices(envelope([]byte("\x0a\x05"+mask)), envelope(nil), envelope([]byte("plain")))
	for _, typ := range []string{"application/grpc", "application/grpc-web+proto", "application/connect+json; charset=utf-8"} {
		resp := answer(iotest.HalfReader(bytes.NewReader(in)), http.Header{"Content-Type": {typ}})
		if got := scrubbedText(t, resp, redactor(value)); got != string(want) {
			t.Errorf("%s: other bytes", typ)
		}
	}
	resp := answer(bytes.NewReader([]byte{1, 0, 0, 0, 1, 'x'}), http.Header{"Content-Type": {"application/grpc"}})
	if err := Response(resp, redactor(value)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); reason(err) != gate.ReasonOpaqueEncoding {
		t.Errorf("a compressed message: %v", err)
	}
}

func TestBrokenWebSocketsEnd(t *testing.T) {
	red := redactor(token(t))
	for what, c := range map[string]struct {
		in   []byte
		want gate.Reason
	}{
		"masked":              {[]byte{0x81, 0x81, 1, 2, 3, 4, 5}, gate.ReasonUpstream},
		"compressed":          {[]byte{0xc1, 0x01, 5}, gate.ReasonOpaqueEncoding},
		"long ping":           {append([]byte{0x89, 126, 0, 200}, make([]byte, 200)...), gate.ReasonUpstream},
		"ping in parts":       {[]byte{0x09, 1, 'x'}, gate.ReasonUpstream},
		"cut inside header":   {[]byte{0x81}, gate.ReasonNone},
		"cut inside payload":  {[]byte{0x81, 5, 'x'}, gate.ReasonNone},
		"cut inside a length": {[]byte{0x81, 127, 0, 0}, gate.ReasonNone},
	} {
		resp, _ := upgraded(bytes.NewReader(c.in), "WebSocket")
		if err := Response(resp, red); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if reason(err) != c.want || c.want == gate.ReasonNone && !bytes.Equal(got, c.in) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	resp, _ := upgraded(strings.NewReader(""), "websocket")
	resp.Header.Set("Sec-Websocket-Extensions", "permessage-deflate")
	if err := Response(resp, red); reason(err) != gate.ReasonOpaqueEncoding {
		t.Errorf("an extension: %v", err)
	}
	plain := answer(strings.NewReader(""), nil)
	plain.StatusCode = http.StatusSwitchingProtocols
	if err := Response(plain, red); reason(err) != gate.ReasonUpstream {
		t.Errorf("an upgrade without a connection: %v", err)
	}
}

func TestOtherUpgradesAreMaskedAsAStream(t *testing.T) {
	value := token(t)
	resp, _ := upgraded(iotest.OneByteReader(strings.NewReader("a"+value+"b")), "spdy")
	if err := Response(resp, redactor(value)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "a"+strings.Repeat("*", len(value))+"b" {
		t.Errorf("other bytes: %v", err)
	}
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

// TestFramesKeepTheirLengths: however messages are cut into frames and frames into reads, headers come out as they went in, payloads keep
// their lengths, and no message holds the secret.
func TestFramesKeepTheirLengths(t *testing.T) {
	value := token(t)
	red := redactor(value)
	rapid.Check(t, func(rt *rapid.T) {
		var in []byte
		type sent struct {
			opcode byte
			fin    bool
			length int
		}
		var frames []sent
		add := func(opcode byte, fin bool, payload []byte) {
			in = append(in, frameOf(opcode, fin, payload)...)
			frames = append(frames, sent{opcode, fin, len(payload)})
		}
		for range rapid.IntRange(1, 5).Draw(rt, "messages") {
			var message []byte
			for range rapid.IntRange(0, 4).Draw(rt, "parts") {
				switch rapid.IntRange(0, 2).Draw(rt, "part") {
				case 0:
					message = append(message, value...)
				case 1:
					message = append(message, value[:rapid.IntRange(0, len(value)).Draw(rt, "prefix")]...)
				case 2:
					message = append(message, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "bytes")...)
				}
			}
			opcode := byte(1)
			for len(message) > 0 && rapid.Bool().Draw(rt, "split") {
				n := rapid.IntRange(0, len(message)).Draw(rt, "at")
				add(opcode, false, message[:n])
				message, opcode = message[n:], 0
				if rapid.Bool().Draw(rt, "ping") {
					add(9, true, []byte(value))
				}
			}
			add(opcode, true, message)
		}
		x := newFramed(io.NopCloser(&chunks{rt, in}), red, webSocket{})
		out, err := io.ReadAll(x)
		if err != nil || len(out) != len(in) {
			rt.Fatalf("%d bytes became %d: %v", len(in), len(out), err)
		}
		var message []byte
		for i, f := range frames {
			size, got, err := webSocket{}.header(out)
			if err != nil || int(got.payload) != f.length || got.ends != f.fin || out[0]&0xf != f.opcode {
				rt.Fatalf("frame %d: %+v, want %+v: %v", i, got, f, err)
			}
			payload := out[size : size+f.length]
			out = out[size+f.length:]
			if got.aside {
				if bytes.Contains(payload, []byte(value)) {
					rt.Fatal("a ping holds the secret")
				}
				continue
			}
			message = append(message, payload...)
			if f.fin {
				if bytes.Contains(message, []byte(value)) {
					rt.Fatal("a message holds the secret")
				}
				message = nil
			}
		}
	})
}

// chunks reads in pieces of drawn size.
type chunks struct {
	t *rapid.T
	b []byte
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := rapid.IntRange(1, min(len(c.b), len(p))).Draw(c.t, "read")
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

// FuzzFrames: no input makes the parser panic, grow without bound or give out more than it took.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x81, 1, 'x'}, true)
	f.Add([]byte{0x01, 3, 's', 'e', 'c', 0x89, 2, 'r', 'e', 0x80, 1, 'x'}, true)
	f.Add([]byte{0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, true)
	f.Add([]byte{0, 0, 0, 0, 1, 'x', 0, 0xff, 0xff, 0xff, 0xff}, false)
	red := redactor("secret-of-the-fuzzer")
	f.Fuzz(func(t *testing.T, in []byte, socket bool) {
		var fr framing = envelopes{}
		if socket {
			fr = webSocket{}
		}
		whole, err := io.ReadAll(newFramed(io.NopCloser(bytes.NewReader(in)), red, fr))
		if len(whole) > len(in) || err == nil && len(whole) != len(in) {
			t.Fatalf("%d bytes became %d", len(in), len(whole))
		}
		single, err1 := io.ReadAll(newFramed(io.NopCloser(iotest.OneByteReader(bytes.NewReader(in))), red, fr))
		if (err == nil) != (err1 == nil) || err == nil && !bytes.Equal(whole, single) {
			t.Fatalf("read at once %q (%v), bytewise %q (%v)", whole, err, single, err1)
		}
	})
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
