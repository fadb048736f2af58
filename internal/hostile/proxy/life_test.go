package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

func TestDenyWhenAuditFails(t *testing.T) {
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		c := w.client(h2)
		w.log.failCommit.Store(true)
		r, _ := http.NewRequest("POST", "https://a.test/", strings.NewReader("body"))
		w.refused(w.do(c, r), gate.ReasonAudit)
		w.log.failAppend.Store(true) // not even the refusal can be recorded: it is said all the same
		r, _ = http.NewRequest("GET", "https://a.test/", nil)
		if a := w.do(c, r); a.reason() != gate.ReasonAudit {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		if n := w.upstream.trips.Load(); n != 0 {
			t.Errorf("%d requests left", n)
		}
		w.log.failCommit.Store(false)
		w.log.failAppend.Store(false)
		w.passed(w.do(c, r))
	})
}

func TestAnOutcomeThatCannotBeWrittenClosesTheConnection(t *testing.T) {
	w := begin(t, allow("a.test"))
	w.upstream.before = func(*http.Request) { w.log.failAppend.Store(true) }
	c := w.tls("a.test")
	_, err := io.WriteString(c, get("/", "a.test")+get("/", "a.test"))
	must(t, err)
	b, _ := io.ReadAll(c)
	if strings.Count(string(b), "HTTP/1.1") > 1 || w.upstream.trips.Load() != 1 {
		t.Errorf("%q after %d requests", b, w.upstream.trips.Load())
	}
}

func TestNothingPassesWhenTheSandboxIsNotTheOneThatWasBound(t *testing.T) {
	for _, why := range []gate.Reason{gate.ReasonIdentity, gate.ReasonSessionEnded} {
		w := begin(t, allow("a.test"))
		c := w.tls("a.test")
		br := bufio.NewReader(c)
		ask := func() answer { io.WriteString(c, get("/", "a.test")); return w.read(br, "GET") }
		w.passed(ask())
		w.dead.Store(&why) // between two requests of one connection
		w.refused(ask(), why)
		if b, _ := io.ReadAll(w.connectTo("a.test", 443)); len(b) > 0 {
			t.Errorf("%q", b)
		}
		w.recordedDenial(why)
		w.dead.Store(nil)
		w.passed(ask())
	}
}

func TestTheNextRequestIsJudgedByTheNewPolicy(t *testing.T) { // A28
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		c := w.client(h2)
		ask := func() answer { r, _ := http.NewRequest("GET", "https://a.test/x", nil); return w.do(c, r) }
		w.passed(ask())
		w.enforce(allow("a.test", paths("/y")))
		w.refused(ask(), gate.ReasonPathNotListed)
		w.policy.Store(nil)
		w.refused(ask(), gate.ReasonHostNotListed)
		w.enforce(allow("a.test"))
		w.passed(ask())
		if n := w.proxy.Limits.Connections(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// streaming makes the sink send one event and hold the stream until the test ends.
func streaming(w *world) {
	hold := make(chan struct{})
	w.Cleanup(func() { close(hold) })
	w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		if r.URL.Path != "/stream" {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
		<-hold
	}, func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "first")
		rw.(http.Flusher).Flush()
		if r.URL.Path == "/stream" {
			<-hold
		}
	})
}

func TestRecheckCutsWhatIsNoLongerAllowed(t *testing.T) {
	t.Run("stream", func(t *testing.T) {
		both(t, plain, func(t *testing.T, w *world, h2 bool) {
			streaming(w)
			resp, err := w.client(h2).Get("https://a.test/stream")
			must(t, err)
			defer resp.Body.Close()
			io.ReadFull(resp.Body, make([]byte, 5))
			w.proxy.Recheck() // still allowed: nothing happens
			w.enforce(allow("b.test"))
			w.proxy.Recheck()
			if b, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("ended well after %q", b)
			}
			if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonHostNotListed {
				t.Errorf("%+v, %+v", d, o)
			}
		})
	})
	t.Run("upload", func(t *testing.T) {
		both(t, plain, func(t *testing.T, w *world, h2 bool) {
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) { io.Copy(io.Discard, r.Body) },
				func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
			pr, pw := io.Pipe()
			r, _ := http.NewRequest("POST", "https://a.test/", pr)
			answered := make(chan answer, 1)
			go func() { answered <- w.do(w.client(h2), r) }()
			io.WriteString(pw, "some")
			d := w.log.next(t)
			w.enforce(allow("b.test"))
			w.proxy.Recheck()
			a := <-answered
			pw.Close()
			if o := w.log.next(t); a.reason() != gate.ReasonHostNotListed || d.Verdict != "allow" || o.Reason != gate.ReasonHostNotListed {
				t.Errorf("%d %q, %+v", a.StatusCode, a.body, o)
			}
		})
	})
	t.Run("tunnel", func(t *testing.T) {
		w := begin(t, allow("pinned.test", tunnel))
		echoTunnel(w.sink)
		s := w.through(w.connectTo("pinned.test", 443), "pinned.test")
		ask(t, s, get("/", "pinned.test"), "HTTP/1.1 200 OK\r\n\r\n")
		w.proxy.Recheck()
		ask(t, s, "still there", "still there")
		w.enforce()
		w.proxy.Recheck()
		if b, _ := io.ReadAll(s); len(b) > 0 {
			t.Errorf("%q", b)
		}
		if _, o := w.tunnelRecords(); o.Reason != gate.ReasonHostNotListed {
			t.Errorf("%+v", o)
		}
	})
	t.Run("websocket", func(t *testing.T) {
		w := begin(t, allow("a.test", sockets))
		c := w.socket()
		w.enforce(allow("a.test"))
		w.proxy.Recheck()
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%q", b)
		}
		if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonUpgradeNotListed || o.Status != 101 {
			t.Errorf("%+v, %+v", d, o)
		}
	})
}

func ask(t testing.TB, c net.Conn, says, hears string) {
	t.Helper()
	_, err := io.WriteString(c, says)
	must(t, err)
	got := make([]byte, len(hears))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != hears {
		t.Fatalf("%q, %v", got, err)
	}
}

// A policy that changes between a request's decision and its way out is asked again.
func TestNoRequestSlipsPastARecheck(t *testing.T) {
	w := newWorld(t, allow("a.test", inject(policy.InjectSet, "main", header("X-Api-Key", ""))))
	w.upstream.ready = func() error { // after the decision
		w.enforce(allow("b.test"))
		w.proxy.Recheck()
		return nil
	}
	w.start()
	a := w.ask(w.tls("a.test"), get("/", "a.test"))
	if d, o := w.log.next(t), w.log.next(t); a.reason() != gate.ReasonHostNotListed || d.Verdict != "allow" || o.Kind != record.Outcome || o.Reason != gate.ReasonHostNotListed {
		t.Errorf("%d %q, %+v, %+v", a.StatusCode, a.body, d, o)
	}
	if n := w.upstream.trips.Load(); n != 0 {
		t.Errorf("%d requests left", n)
	}
}

func TestAPanicIsARefusal(t *testing.T) {
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		w.upstream.before = func(*http.Request) { panic("a bug") }
		c := w.client(h2)
		r, _ := http.NewRequest("GET", "https://a.test/", nil)
		a := w.do(c, r)
		if a.StatusCode != 403 || a.reason() != gate.ReasonBug || !h2 && !a.Close || strings.Contains(a.body, "a bug") {
			t.Errorf("%d %q, close %v", a.StatusCode, a.body, a.Close)
		}
		if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Kind != record.Outcome || o.Reason != gate.ReasonBug {
			t.Errorf("%+v, %+v", d, o)
		}
		w.upstream.before = nil
		w.passed(w.do(c, r))
	})
	t.Run("before the decision", func(t *testing.T) {
		w := newWorld(t, allow("a.test"))
		w.config.Policy = func() *policy.Policy { panic("a bug") }
		w.start()
		w.tlsFails("a.test")
		w.recordedDenial(gate.ReasonBug)
	})
	t.Run("in the middle of an answer", func(t *testing.T) {
		w := begin(t, allow("a.test"))
		w.sink.says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
		c := w.tls("a.test")
		_, err := io.WriteString(c, get("/", "a.test"))
		must(t, err)
		br := bufio.NewReader(c)
		resp, err := http.ReadResponse(br, nil)
		must(t, err)
		io.ReadFull(resp.Body, make([]byte, 4))
		w.sink.close()
		if b, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("tunnel", func(t *testing.T) {
		w := newWorld(t, allow("pinned.test", tunnel))
		w.config.Upstream = panicking{w.upstream}
		w.start()
		w.tlsFails("pinned.test")
		if _, o := w.tunnelRecords(); o.Reason != gate.ReasonBug {
			t.Errorf("%+v", o)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	w := begin(t, allow("a.test", sockets), allow("pinned.test", tunnel))
	streaming(w)
	streams := []*http.Client{w.client(false), w.client(true)}
	for i, c := range streams {
		w.upstream.useH2.Store(i == 1)
		resp, err := c.Get("https://a.test/stream")
		must(t, err)
		defer resp.Body.Close()
		io.ReadFull(resp.Body, make([]byte, 5))
	}
	silent := w.connectTo("a.test", 443)
	half := w.tls("a.test")
	io.WriteString(half, "GET / HTTP/1.1\r\nHo")
	idle := w.tls("a.test")
	pr, pw := io.Pipe()
	defer pw.Close()
	r, _ := http.NewRequest("POST", "https://a.test/", pr)
	uploaded := make(chan error, 1)
	go func() {
		resp, err := w.client(false).Do(r)
		if err == nil {
			resp.Body.Close()
		}
		uploaded <- err
	}()
	io.WriteString(pw, "some")
	tunnelled := w.through(w.connectTo("pinned.test", 443), "pinned.test")
	inside := w.explicit()
	w.tunnelTo(inside, "a.test:443", "")
	stalled := w.tls("a.test") // asks much and reads nothing
	go func() {
		for {
			if _, err := io.WriteString(stalled, get("/evil", "b.test")); err != nil {
				return
			}
		}
	}()
	<-w.log.changed
	w.proxy.Close()
	w.proxy.Close() // again
	w.serving.Wait()
	for name, c := range map[string]net.Conn{"silent": silent, "half": half, "idle": idle, "tunnel": tunnelled, "inside": inside} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s is still served", name)
		}
	}
	if n := w.proxy.Limits.Connections(); n != 0 {
		t.Errorf("%d connections are counted", n)
	}
	outcomes := map[gate.EventID]int{}
	for _, r := range w.log.rest() {
		if r.Kind == record.Outcome {
			outcomes[r.Event]++
			if r.Path == "/stream" && r.Reason != gate.ReasonSessionEnded {
				t.Errorf("%+v", r)
			}
		} else if r.Verdict == "allow" {
			outcomes[r.Event] += 10
		}
	}
	for e, n := range outcomes {
		if n != 11 {
			t.Errorf("%v has %d decisions and %d outcomes", e, n/10, n%10)
		}
	}
	if b, _ := io.ReadAll(w.connectTo("a.test", 443)); len(b) > 0 {
		t.Errorf("answered after the end: %q", b)
	}
}

func TestCloseWaitsForTheRecordOfWhatItCut(t *testing.T) {
	w := begin(t, allow("a.test"))
	cut, release, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.upstream.before = func(r *http.Request) {
		<-r.Context().Done()
		close(cut)
		<-release
	}
	io.WriteString(w.tls("a.test"), get("/", "a.test"))
	w.log.next(t)
	go func() { w.proxy.Close(); close(closed) }()
	<-cut
	select {
	case <-closed:
		t.Error("it did not")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	<-closed
	if rest := w.log.rest(); len(rest) != 1 || rest[0].Kind != record.Outcome || rest[0].Reason != gate.ReasonSessionEnded {
		t.Errorf("%+v", rest)
	}
}

func TestClientsThatLeave(t *testing.T) {
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		streaming(w)
		for _, path := range []string{"/stream", "/waiting"} {
			if path == "/waiting" {
				hold := make(chan struct{})
				defer close(hold)
				w.sink.answers(func(net.Conn, *bufio.Reader, *http.Request) { <-hold }, func(http.ResponseWriter, *http.Request) { <-hold })
			}
			c := w.tls("a.test", func(c *tls.Config) {
				if h2 {
					c.NextProtos = []string{"h2"}
				}
			})
			if h2 {
				f := w.frames(c)
				f.send(":method", "GET", ":scheme", "https", ":path", path, ":authority", "a.test")
			} else {
				io.WriteString(c, get(path, "a.test"))
			}
			d := w.log.next(t)
			if path == "/stream" {
				c.Read(make([]byte, 1))
			}
			c.NetConn().Close()
			if o := w.log.next(t); d.Verdict != "allow" || o.Event != d.Event || o.Reason != gate.ReasonAllowed || !strings.Contains(o.Detail, "left") {
				t.Errorf("%s: %+v", path, o)
			}
		}
	})
}

// socket opens a WebSocket to a sink that echoes.
func (w *world) socket() net.Conn {
	w.Helper()
	w.sink.answers(func(c net.Conn, br *bufio.Reader, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nAlt-Svc: h3\r\n\r\nhello")
		io.Copy(c, br)
		c.Close()
	}, nil)
	c := w.tls("a.test")
	ask(w, c, get("/ws", "a.test", "Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"),
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nSec-Websocket-Accept: x\r\nUpgrade: websocket\r\n\r\nhello")
	ask(w, c, "frame", "frame")
	return c
}

func TestAWebSocketThatARuleAllows(t *testing.T) { // C05
	w := begin(t, allow("a.test", sockets))
	c := w.socket()
	ask(t, c, strings.Repeat("x", 200_000), strings.Repeat("x", 200_000))
	c.Close()
	d, o := w.log.next(t), w.log.next(t)
	if d.Verdict != "allow" || o.Event != d.Event || o.Status != 101 || o.Reason != gate.ReasonAllowed || o.BytesIn != 200_005 || o.BytesOut != 200_010 {
		t.Errorf("%+v, %+v", d, o)
	}
}

func TestAWebSocketHasLimits(t *testing.T) {
	w := newWorld(t, allow("a.test", sockets, func(r *policy.Rule) { r.MaxBody = 100_000 }))
	w.limits.Progress = 300 * time.Millisecond
	w.limits.Upload = 150_000
	w.start()
	for _, test := range []struct {
		send int
		want gate.Reason
	}{{0, gate.ReasonLimitTime}, {200_000, gate.ReasonLimitBody}, {99_000, gate.ReasonLimitUpload}} {
		c := w.socket()
		go c.Write(make([]byte, test.send))
		n, _ := io.Copy(io.Discard, c)
		if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != test.want || o.Status != 101 {
			t.Errorf("%+v: %+v after %d bytes", test, o, n)
		}
	}
}

func TestAnUpgradeThatTheUpstreamDeclines(t *testing.T) {
	w := begin(t, allow("a.test", sockets))
	w.sink.says("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno")
	c := w.tls("a.test")
	br := bufio.NewReader(c)
	for range 2 {
		io.WriteString(c, get("/ws", "a.test", "Connection: Upgrade", "Upgrade: websocket"))
		a := w.read(br, "GET")
		w.passed(a)
		if a.StatusCode != 426 || a.body != "no" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
	}
}

func TestAnUpgradeIsRefusedInTheWordsOfTheHost(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.config.Voice = func(gate.Host) policy.Voice { return policy.VoiceOpenAI }
	w.start()
	a := w.ask(w.tls("a.test"), get("/v1/responses", "a.test", "Connection: Upgrade", "Upgrade: websocket"))
	if a.StatusCode != 426 {
		t.Errorf("%d", a.StatusCode)
	}
	w.refused(a, gate.ReasonUpgradeNotListed)
	w.passed(w.ask(w.tls("a.test"), "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi")) // no WebSocket begins so
}

// tlsFails makes a TLS connection that must not come about.
func (w *world) tlsFails(name string) {
	w.Helper()
	c := tls.Client(w.connectTo(name, 443), &tls.Config{ServerName: name, RootCAs: w.sessions.pool})
	if c.Handshake() == nil {
		w.Error("a handshake")
	}
}

type panicking struct{ Upstream }

func (panicking) Tunnel(context.Context, policy.Permit) (*net.TCPConn, error) { panic("a bug") }
