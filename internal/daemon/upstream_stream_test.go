package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"postern/internal/core/policy"
	"postern/internal/testkit"
)

func TestWebSocketGreetingIsMasked(t *testing.T) {
	w := newWorld(t)
	socket := testkit.WebSocketEcho()
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sec-Websocket-Extensions") != "" {
			t.Error("an extension was offered")
		}
		socket.ServeHTTP(rw, r)
	})
	up := w.permit(func(_ *policy.Rule, a *policy.Action) { a.Upgrade = true })
	r := w.request(http.MethodGet, "/?leak=1", nil)
	for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13",
		"Sec-Websocket-Key": base64.StdEncoding.EncodeToString(make([]byte, 16)), "Sec-Websocket-Extensions": "permessage-deflate"} {
		r.Header.Set(k, v)
	}
	resp, err := w.up.RoundTrip(up, w.header, r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s with a %T", resp.Status, resp.Body)
	}
	read := func() string {
		t.Helper()
		head := make([]byte, 2)
		if _, err := io.ReadFull(rw, head); err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, head[1])
		if _, err := io.ReadFull(rw, payload); err != nil {
			t.Fatal(err)
		}
		return string(payload)
	}
	if got := read(); leaks(got, w.value) != "" || !strings.HasPrefix(got, "you sent ***") {
		t.Errorf("the greeting was not masked (%d bytes)", len(got))
	}
	frame := []byte{0x81, 0x85, 0, 0, 0, 0} // a mask of zeros
	if _, err := rw.Write(append(frame, "hello"...)); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "hello" {
		t.Errorf("echo: %q", got)
	}
}

func TestGRPCStreamsBothWays(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		ctl := http.NewResponseController(rw)
		ctl.Flush()
		head := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r.Body, head); err != nil {
				break
			}
			message := make([]byte, binary.BigEndian.Uint32(head[1:]))
			io.ReadFull(r.Body, message)
			rw.Write(head)
			rw.Write(message)
			ctl.Flush()
		}
		rw.Header().Set("Grpc-Status", "0")
		rw.Header().Set("Grpc-Message", r.Header.Get("Authorization"))
	})
	pr, pw := io.Pipe()
	r := w.request(http.MethodPost, "/svc/Method", pr)
	r.ContentLength = -1
	r.Header.Set("Te", "trailers")
	resp, err := w.up.RoundTrip(w.permit(nil), w.header, r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for n := range 8 { // each message ends like the beginning of the credential, and is waited for before the next is sent
		payload := "message " + w.value[:n]
		message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(payload))), payload...)
		if _, err := pw.Write(message); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(message))
		if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("message %d: %v", n, err)
		}
	}
	pw.Close()
	io.Copy(io.Discard, resp.Body)
	if resp.Trailer.Get("Grpc-Status") != "0" || !strings.HasPrefix(resp.Trailer.Get("Grpc-Message"), "Bearer ***") {
		t.Errorf("trailer %d fields", len(resp.Trailer))
	}
}

func TestTunnelIsABareConnection(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), false, func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "through "+r.Header.Get("Authorization"))
	})
	tunnel := w.permit(func(r *policy.Rule, a *policy.Action) {
		r.TLS, r.Inject, r.WebSocket = policy.Tunnel, policy.Injection{}, false
		a.Kind = policy.Connect
	})
	c, err := w.up.Tunnel(t.Context(), tunnel)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: w.ca.Pool()},
		DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
	resp, err := client.Get("https://api.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "through " {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestBodiesOfAnySizeNeedTheSameMemory(t *testing.T) {
	const size = 128 << 20
	w := newWorld(t)
	bulk := testkit.Bulk()
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) { bulk.ServeHTTP(rw, r) })
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	sample := func() {
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapInuse)
	}
	resp, err := w.up.RoundTrip(w.permit(nil), w.header, w.request(http.MethodGet, fmt.Sprintf("/?n=%d", size), nil))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 32<<10)
	down := int64(0)
	for err == nil {
		var n int
		n, err = resp.Body.Read(buf)
		if before := down; before>>24 != (down+int64(n))>>24 {
			sample()
		}
		down += int64(n)
	}
	resp.Body.Close()
	if down != size || err != io.EOF {
		t.Errorf("download of %d bytes: %v", down, err)
	}
	r := w.request(http.MethodPost, "/", &zeros{left: size, each: sample})
	r.ContentLength = size
	if _, text := w.do(w.permit(nil), w.header, r); !strings.Contains(text, fmt.Sprintf("%d <nil>", size)) {
		t.Errorf("upload: %q", text)
	}
	if grown := int64(most) - int64(before.HeapInuse); grown > 24<<20 { // both ends and net/http's buffers
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

type zeros struct {
	left int64
	each func()
}

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	if z.left>>24 != (z.left-n)>>24 {
		z.each()
	}
	z.left -= n
	return int(n), nil
}

// BenchmarkUpstream is one small request with a credential, and 64 MiB of an answer that is searched, over HTTP/1.1 and HTTP/2.
func BenchmarkUpstream(b *testing.B) {
	for name, http2 := range map[string]bool{"h1": false, "h2": true} {
		w := newWorld(b)
		bulk := testkit.Bulk()
		w.serve(w.good(), http2, func(rw http.ResponseWriter, r *http.Request) { bulk.ServeHTTP(rw, r) })
		p, buf := w.permit(nil), make([]byte, 32<<10)
		for _, size := range []int64{100, 64 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					resp, err := w.up.RoundTrip(p, w.header, w.request(http.MethodGet, fmt.Sprintf("/?n=%d", size), nil))
					if err != nil {
						b.Fatal(err)
					}
					if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf); n != size || err != nil {
						b.Fatal(n, err)
					}
					resp.Body.Close()
				}
			})
		}
	}
}
