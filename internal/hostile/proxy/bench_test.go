package proxy

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

// The benchmarks measure the proxy and a client over TLS on loopback. The upstream answers from memory and the log keeps nothing, so that what is
// counted is theirs alone.

func benchmark(b testing.TB, body func() io.ReadCloser, length int64) *world {
	b.Helper()
	w := newWorld(b, allow("a.test", inject(policy.InjectSwap, "main", header("X-Api-Key", ""), header("Authorization", "Bearer {}"))))
	w.config.Upstream = instant{w.upstream, body, length}
	w.config.Recorder = forgetful{}
	endless := limit.Rate{Per: 1e9, Burst: 1 << 30}
	w.limits.Requests, w.limits.Handshakes = endless, endless
	w.totals = limit.NewGlobal(limit.Totals{Requests: endless, Handshakes: endless})
	return w.start()
}

type instant struct {
	*upstream
	body   func() io.ReadCloser
	length int64
}

func (i instant) RoundTrip(_ policy.Permit, _ policy.Slot, r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	h := http.Header{"Content-Type": {"application/json"}, "Server": {"sink"}, "X-Request-Id": {"0123456789abcdef"}}
	return &http.Response{StatusCode: 200, Header: h, Body: i.body(), ContentLength: i.length}, nil
}

type forgetful struct{}

func (forgetful) Commit(context.Context, *record.Record) error { return nil }
func (forgetful) Append(*record.Record) error                  { return nil }

func ok() io.ReadCloser { return io.NopCloser(strings.NewReader(`{"ok":true}`)) }

func (w *world) request() string {
	return get("/v1/models?limit=20", "a.test", "User-Agent: bench/1.0", "Accept: application/json", "Accept-Encoding: identity", "X-Api-Key: "+w.tokens["main"])
}

func BenchmarkRequestH1(b *testing.B) {
	w := benchmark(b, ok, 11)
	c := w.tls("a.test")
	must(b, c.SetDeadline(time.Time{}))
	br, raw := bufio.NewReader(c), []byte(w.request())
	req := &http.Request{Method: "GET"}
	b.ReportAllocs()
	for b.Loop() {
		_, err := c.Write(raw)
		must(b, err)
		resp, err := http.ReadResponse(br, req)
		must(b, err)
		_, err = io.Copy(io.Discard, resp.Body)
		if must(b, err); resp.StatusCode != 200 {
			b.Fatal(resp.StatusCode)
		}
	}
}

// BenchmarkServeHTTP is the pipeline alone: no connection and no TLS.
func BenchmarkServeHTTP(b *testing.B) {
	once := pipeline(b)
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}

// pipeline is one request after another through the pipeline alone.
func pipeline(t testing.TB) func() {
	w := benchmark(t, ok, 11)
	f := &flow{p: w.proxy, dst: unnamed(443), scheme: gate.HTTPS, name: host("a.test"), port: 443}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(w.request())))
	must(t, err)
	r = r.WithContext(context.WithValue(context.Background(), flowKey{}, f))
	fields := r.Header
	return func() {
		r.Header = fields.Clone()
		out := discard{h: http.Header{}}
		if w.proxy.ServeHTTP(&out, r); out.status != 200 {
			t.Fatal(out.status)
		}
	}
}

type discard struct {
	h      http.Header
	status int
}

func (d *discard) Header() http.Header              { return d.h }
func (d *discard) EnableFullDuplex() error          { return nil }
func (d *discard) SetWriteDeadline(time.Time) error { return nil }
func (d *discard) SetReadDeadline(time.Time) error  { return nil }
func (d *discard) WriteHeader(s int)                { d.status = s }
func (d *discard) Write(b []byte) (int, error)      { return len(b), nil }

func BenchmarkRequestH2(b *testing.B) {
	w := benchmark(b, ok, 11)
	c := w.client(true)
	b.ReportAllocs()
	b.SetParallelism(8) // 16 streams on two cores
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, _ := http.NewRequest("GET", "https://a.test/v1/models?limit=20", nil)
			r.Header.Set("X-Api-Key", w.tokens["main"])
			resp, err := c.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}

func BenchmarkDownload64MiB(b *testing.B) {
	const size = 64 << 20
	for _, h2 := range []bool{false, true} {
		b.Run(map[bool]string{false: "h1", true: "h2"}[h2], func(b *testing.B) {
			w := benchmark(b, func() io.ReadCloser { return io.NopCloser(io.LimitReader(zeros{}, size)) }, size)
			c := w.client(h2)
			b.ReportAllocs()
			b.SetBytes(size)
			for b.Loop() {
				resp, err := c.Get("https://a.test/")
				must(b, err)
				n, err := io.Copy(io.Discard, resp.Body)
				must(b, err)
				if resp.Body.Close(); n != size {
					b.Fatal(n)
				}
			}
		})
	}
}

func BenchmarkNewConnection(b *testing.B) {
	w := benchmark(b, ok, 11)
	raw := w.request()
	b.ReportAllocs()
	for b.Loop() {
		c := w.tls("a.test")
		if a := w.ask(c, raw); a.StatusCode != 200 {
			b.Fatal(a.StatusCode)
		}
		c.Close()
	}
}
