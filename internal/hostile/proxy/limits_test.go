package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/policy"
)

func TestConnectionsAreLimited(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.limits.Connections = 2
	w.start()
	one, two := w.tls("a.test"), w.connectTo("a.test", 443)
	w.passed(w.ask(one, get("/", "a.test"))) // the two are counted by now, or one of them is
	for w.proxy.Limits.Connections() < 2 {
		two.Write(nil)
	}
	if b, _ := io.ReadAll(w.connectTo("a.test", 443)); len(b) > 0 {
		t.Errorf("%q", b)
	}
	w.recordedDenial(gate.ReasonLimitConnections)
	one.Close()
	two.Close()
	for w.proxy.Limits.Connections() > 0 {
		two.Write(nil)
	}
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test")))
}

// HTTP/2 puts many requests on one connection, and each answer that is not read holds memory.
func TestRequestsUnderWayAreLimitedAsConnectionsAre(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.limits.Connections = 3
	w.start()
	arrived, release := make(chan struct{}, 3), make(chan struct{})
	defer close(release)
	w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		if r.URL.Path == "/held" {
			arrived <- struct{}{}
			<-release
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}, nil)
	underWay := func() int {
		runtime.Gosched()
		w.proxy.mu.Lock()
		defer w.proxy.mu.Unlock()
		return len(w.proxy.live)
	}
	f := w.frames(w.tls("a.test", h2only))
	for range 3 {
		f.send(":method", "GET", ":scheme", "https", ":path", "/held", ":authority", "a.test")
	}
	for range 3 {
		<-arrived
	}
	c := w.client(true)
	r, err := http.NewRequest("GET", "https://a.test/more", nil)
	must(t, err)
	if a := w.do(c, r); a.reason() != gate.ReasonLimitConnections {
		t.Errorf("%v %q", a.Status, a.body)
	}
	for id := uint32(1); id < 6; id += 2 {
		must(t, f.fr.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	for underWay() > 0 { // they end
	}
	if a := w.do(c, r); a.StatusCode != 200 {
		t.Errorf("after they ended: %v %q", a.Status, a.body)
	}
}

func TestHandshakesAndRequestsAreLimited(t *testing.T) {
	now := time.Now()
	w := newWorld(t, allow("a.test"))
	w.limits.Handshakes = limit.Rate{Per: 1, Burst: 2}
	w.limits.Requests = limit.Rate{Per: 1, Burst: 3}
	w.config.Now = func() time.Time { now = now.Add(time.Microsecond); return now }
	w.start()
	c := w.tls("a.test")
	br := bufio.NewReader(c)
	ask := func() answer { io.WriteString(c, get("/", "a.test")); return w.read(br, "GET") }
	for range 3 {
		w.passed(ask())
	}
	a := ask()
	w.refused(a, gate.ReasonLimitRequests)
	if a.StatusCode != 403 { // never 429, which clients retry
		t.Errorf("%d", a.StatusCode)
	}
	w.tls("a.test").Close()
	w.tlsFails("a.test")
	w.recordedDenial(gate.ReasonLimitHandshakes)
	w.proxy.Close()
}

func TestBodiesAreLimited(t *testing.T) {
	both(t, func() []func(*world) {
		return []func(*world){func(w *world) {
			w.limits.Body, w.limits.Upload = 1000, 2500
			w.enforce(allow("a.test", paths("/small"), func(r *policy.Rule) { r.MaxBody = 10 }), allow("a.test"))
		}}
	}, func(t *testing.T, w *world, h2 bool) {
		c := w.client(h2)
		post := func(path string, size int, declared bool) answer {
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if !declared {
				body = io.MultiReader(body)
			}
			r, err := http.NewRequest("POST", "https://a.test"+path, body)
			must(t, err)
			return w.do(c, r)
		}
		w.passed(post("/", 1000, true))
		w.passed(post("/", 1000, false))
		w.passed(post("/small", 10, true))
		w.refused(post("/", 1001, true), gate.ReasonLimitBody)
		w.refused(post("/small", 11, true), gate.ReasonLimitBody)
		for _, test := range []struct {
			path string
			size int
			want gate.Reason
		}{{"/small", 11, gate.ReasonLimitBody}, {"/", 1001, gate.ReasonLimitBody}, {"/", 600, gate.ReasonLimitUpload}} {
			a := post(test.path, test.size, false)
			if a.reason() != test.want || a.StatusCode != 413 {
				t.Errorf("%+v: %d %q", test, a.StatusCode, a.body)
			}
			if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != test.want || o.Status != 413 {
				t.Errorf("%+v: %+v", test, o)
			}
		}
		if up := w.proxy.Limits.Uploaded(); up > 2500 {
			t.Errorf("%d bytes of the budget", up)
		}
	})
}

func TestABodyOverItsLimitNeverArrivesWhole(t *testing.T) {
	w := newWorld(t, allow("a.test", func(r *policy.Rule) { r.MaxBody = 1000 }))
	w.start()
	whole := make(chan bool, 1)
	w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		whole <- err == nil || len(b) > 1000
	}, nil)
	w.ask(w.tls("a.test"), "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"+strings.Repeat("x", 1001)+"\r\n0\r\n\r\n")
	if <-whole {
		t.Error("it did")
	}
}

func TestSlowPeersAreCutByProgress(t *testing.T) {
	short := func(w *world) { w.limits.Progress, w.limits.Answer = 500*time.Millisecond, 600*time.Millisecond }
	both(t, func() []func(*world) { return []func(*world){short} }, func(t *testing.T, w *world, h2 bool) {
		hold := make(chan struct{})
		defer close(hold)
		stall := func(head string) {
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/upload") {
					io.Copy(io.Discard, r.Body)
				}
				io.WriteString(c, head)
				<-hold
			}, func(rw http.ResponseWriter, r *http.Request) {
				if head != "" {
					io.WriteString(rw, "some")
					rw.(http.Flusher).Flush()
				}
				<-hold
			})
		}
		outcome := func(want gate.Reason) {
			t.Helper()
			if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Event != d.Event || o.Reason != want {
				t.Errorf("%+v, want %q", o, want)
			}
		}
		c := w.client(h2)
		// A client that stops in the middle of its body is told.
		stall("")
		pr, pw := io.Pipe()
		go io.WriteString(pw, "some")
		r, _ := http.NewRequest("POST", "https://a.test/upload", pr)
		if a := w.do(c, r); a.reason() != gate.ReasonLimitTime || a.StatusCode != 403 {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		pw.Close()
		outcome(gate.ReasonLimitTime)
		// An upstream that does not answer.
		r, _ = http.NewRequest("GET", "https://a.test/", nil)
		if a := w.do(c, r); a.reason() != gate.ReasonUpstreamTimeout || a.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		outcome(gate.ReasonUpstreamTimeout)
		// An upstream that stops in the middle of its answer.
		stall("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n")
		resp, err := c.Do(r)
		must(t, err)
		if b, err := io.ReadAll(resp.Body); string(b) != "some" || err == nil {
			t.Errorf("%q, %v", b, err)
		}
		resp.Body.Close()
		outcome(gate.ReasonLimitTime)
		// A client that takes nothing.
		endless := func(out io.Writer) {
			for {
				if _, err := out.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", 1<<40)
			endless(c)
			c.Close()
		}, func(rw http.ResponseWriter, r *http.Request) { endless(rw) })
		resp, err = c.Do(r)
		must(t, err)
		outcome(gate.ReasonLimitTime)
		resp.Body.Close()
		// What moves is not cut, however long it takes.
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}, nil)
		pr, pw = io.Pipe()
		go func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for range 8 {
				<-tick.C
				io.WriteString(pw, "x")
			}
			pw.Close()
		}()
		r, _ = http.NewRequest("POST", "https://a.test/upload", pr)
		if a := w.do(c, r); a.body != "ok" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		outcome(gate.ReasonAllowed)
	})
	t.Run("before a request", func(t *testing.T) {
		w := newWorld(t, allow("a.test"))
		w.limits.HelloTime, w.limits.HeaderTime, w.limits.Idle = 300*time.Millisecond, 200*time.Millisecond, 500*time.Millisecond
		w.start()
		silent := w.connectTo("a.test", 443)
		if b, _ := io.ReadAll(silent); len(b) > 0 {
			t.Errorf("%q", b)
		}
		w.recordedDenial(gate.ReasonProtocolUnknown)
		half := w.connectTo("a.test", 443)
		half.Write([]byte{22, 3, 1, 1, 0, 1})
		if b, _ := io.ReadAll(half); len(b) > 0 {
			t.Errorf("%q", b)
		}
		w.recordedDenial(gate.ReasonLimitTime)
		c := w.tls("a.test") // a slow head
		io.WriteString(c, "GET / HTTP/1.1\r\nHo")
		a := w.read(bufio.NewReader(c), "GET")
		w.refused(a, gate.ReasonLimitTime)
		for _, h2 := range []bool{false, true} { // an idle connection
			c := w.tls("a.test", func(c *tls.Config) {
				if h2 {
					c.NextProtos = []string{"h2"}
				}
			})
			if h2 {
				w.frames(c)
			} else {
				w.passed(w.ask(c, get("/", "a.test")))
			}
			io.Copy(io.Discard, c)
		}
	})
}

// A client that asks and never reads holds its own connection for a while, and nothing else.
func TestAClientThatNeverReadsRefusalsIsCut(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.limits.Progress = 100 * time.Millisecond
	w.start()
	c := w.tls("a.test")
	for {
		if _, err := io.WriteString(c, get("/", "b.test")); err != nil {
			break
		}
	}
	for w.proxy.Limits.Connections() > 0 {
		<-time.After(time.Millisecond)
	}
	w.log.rest()
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test")))
}

// An HTTP/2 client whose window stays shut holds a stream for a while, and no longer.
func TestAnAnswerThatNobodyTakesIsCut(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.limits.Progress = 300 * time.Millisecond
	w.start()
	f := w.frames(w.tls("a.test", h2only))
	must(t, f.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for _, authority := range []string{"a.test", "b.test"} {
		id := f.send(":method", "GET", ":scheme", "https", ":path", "/", ":authority", authority)
		for cut := false; !cut; {
			frame, err := f.fr.ReadFrame()
			must(t, err)
			rst, ok := frame.(*http2.RSTStreamFrame)
			cut = ok && rst.StreamID == id
		}
	}
}
