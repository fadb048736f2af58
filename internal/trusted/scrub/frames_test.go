package scrub

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

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
