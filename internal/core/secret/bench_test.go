package secret

import (
	"crypto/rand"
	"io"
	"strings"
	"testing"
)

// pages are kinds of traffic, 1 MiB each. Each is searched for two credentials of 40 and 108 characters, as a session with two presets is.
func pages(b *testing.B) map[string][]byte {
	const size = 1 << 20
	random := make([]byte, size)
	if _, err := rand.Read(random); err != nil {
		b.Fatal(err)
	}
	fill := func(s string) []byte { return []byte(strings.Repeat(s, size/len(s)+1)[:size]) }
	return map[string][]byte{
		"random":  random,
		"zeros":   make([]byte, size),
		"json":    fill(`{"id":"msg_01","type":"message","role":"assistant","content":[{"type":"text","text":"He said \"no\".\nThen he left, 100% sure."}],"usage":{"input_tokens":12}}`),
		"source":  fill("func (s *Stream) Write(dst, p []byte) []byte {\n\tif s.r.IsZero() { return append(dst, p...) }\n}\n"),
		"percent": fill("name=J%C3%BCrgen%20M%C3%BCller&path=%2Fhome%2Fj&"),
		"base64":  fill("TG9yZW0gaXBzdW0gZG9sb3Igc2l0IGFtZXQsIGNvbnNlY3RldHVyIGFkaXBpc2Npbmcg"),
	}
}

type repeat struct {
	page []byte
	n    int
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.page[len(r.page)-r.n:])
	r.n -= n
	return n, nil
}
func (r *repeat) Close() error { return nil }

func BenchmarkReader(b *testing.B) {
	secrets := map[string]*Redactor{
		"none":    nil,
		"two":     redactorOf(canary(b, 40), "sk-ant-api03-"+canary(b, 95)),
		"short":   redactorOf(canary(b, 8)),
		"sixteen": redactorOf(canary(b, 16)),
	}
	for kind, r := range secrets {
		for name, page := range pages(b) {
			b.Run(kind+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(page)))
				buf := make([]byte, 32<<10)
				for b.Loop() {
					x := r.Reader(&repeat{page, len(page)})
					for {
						if _, err := x.Read(buf); err == io.EOF {
							break
						}
					}
				}
			})
		}
	}
}

// BenchmarkEvents is a stream of server-sent events, one a read.
func BenchmarkEvents(b *testing.B) {
	r := redactorOf(canary(b, 40), "sk-ant-api03-"+canary(b, 95))
	event := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n")
	s := r.Stream()
	var out []byte
	b.ReportAllocs()
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		out = s.Write(out[:0], event)
	}
}

// BenchmarkHeader is one value of a response's header.
func BenchmarkHeader(b *testing.B) {
	r := redactorOf(canary(b, 40), "sk-ant-api03-"+canary(b, 95))
	value := []byte("text/event-stream; charset=utf-8, max-age=31536000")
	b.ReportAllocs()
	for b.Loop() {
		r.Bytes(value)
	}
}

// BenchmarkAlmost is input made of the secrets' own pieces: the most work an upstream can cause that knows them.
func BenchmarkAlmost(b *testing.B) {
	secret := canary(b, 40)
	for name, c := range map[string]struct{ secret, page string }{
		"prefixes":      {secret, secret[:39]},
		"middles":       {secret, secret[1:]},
		"escapes":       {secret, "%" + "41" + secret[:30]},
		"one letter":    {strings.Repeat("a", 40), strings.Repeat("a", 39) + "b"},
		"one letter, %": {strings.Repeat("a", 40), strings.Repeat("a", 19) + "%61" + strings.Repeat("a", 19) + "b"},
	} {
		b.Run(name, func(b *testing.B) {
			r := redactorOf(c.secret)
			page := []byte(strings.Repeat(c.page, 1<<20/len(c.page)))
			b.SetBytes(int64(len(page)))
			for b.Loop() {
				r.Found(page)
			}
		})
	}
}

// BenchmarkCompile is what a session pays when a credential is loaded.
func BenchmarkCompile(b *testing.B) {
	v := New("test", []byte("sk-ant-api03-"+canary(b, 95)))
	b.ReportAllocs()
	for b.Loop() {
		NewRedactor(v)
	}
}
