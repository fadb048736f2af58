package h1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type connKey struct{}

// server runs net/http's server over filters and keeps what its handler saw.
type server struct {
	*http.Server
	limits Limits
	mu     sync.Mutex
	seen   []string // "METHOD path body" of every request that came in whole, "violation reason" of every refusal
}

func newServer(l Limits, special http.HandlerFunc) *server {
	s := &server{limits: l}
	s.Server = &http.Server{
		IdleTimeout:       time.Minute,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := r.Context().Value(connKey{}).(*Conn)
			if v := c.Violation(r.Method); v != nil {
				s.refuse(w, v)
				return
			}
			if special != nil {
				special(w, r)
				return
			}
			b, err := io.ReadAll(r.Body)
			if v := c.BodyViolation(); v != nil && err != nil {
				s.refuse(w, v)
				return
			}
			if err == nil {
				s.note(r.Method + " " + r.RequestURI + " " + string(b))
			}
		}),
	}
	return s
}

func (s *server) refuse(w http.ResponseWriter, v *Violation) {
	s.note("violation " + string(v.Reason))
	http.Error(w, string(v.Reason), 400)
}

func (s *server) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, line)
}

func (s *server) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// dial starts the server and returns a client's connection to it; both end with stop.
func (s *server) dial() (client net.Conn, stop func()) {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	served := make(chan struct{})
	go func() { s.Serve(l); close(served) }()
	client, end := net.Pipe()
	l.conns <- NewConn(end, s.limits)
	return client, func() { client.Close(); s.Close(); <-served }
}

// tcp starts the server on loopback.
func (s *server) tcp(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { s.Serve(filtering{l, s.limits}); close(served) }()
	t.Cleanup(func() { s.Close(); <-served })
	return l.Addr().String()
}

type filtering struct {
	net.Listener
	limits Limits
}

func (f filtering) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(c, f.limits), nil
}

// exchange sends raw bytes over TCP and reads until the server closes.
func exchange(t *testing.T, addr, raw string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := make(chan struct{})
	go func() { io.WriteString(c, raw); close(sent) }()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("after %q: %v", b, err)
	}
	c.Close()
	<-sent
	return string(b)
}

func TestServerAnswersAViolationAndCloses(t *testing.T) {
	for _, row := range rows {
		if row.want == "" {
			continue
		}
		s := newServer(Limits{}, nil)
		got := exchange(t, s.tcp(t), row.in)
		if !strings.Contains(got, "HTTP/1.1 400 Bad Request\r\n") || !strings.HasSuffix(got, string(row.want)+"\n") {
			t.Errorf("%s: answered %q", row.name, got)
		}
		seen := s.notes()
		if len(seen) == 0 || seen[len(seen)-1] != "violation "+string(row.want) {
			t.Errorf("%s: the handler saw %q", row.name, seen)
		}
	}
}

func TestRefusalReachesAClientThatKeepsSending(t *testing.T) {
	s := newServer(Limits{}, nil)
	got := exchange(t, s.tcp(t), "GET / HTTP/1.1\nHost: a.test\n\n"+strings.Repeat("x", 100<<10))
	if !strings.HasSuffix(got, "request.malformed\n") {
		t.Errorf("answered %q", got)
	}
}

func TestPipelinedRequestsAreJudgedOneByOne(t *testing.T) {
	s := newServer(Limits{}, nil)
	got := exchange(t, s.tcp(t), get+post+"Content-Length: 5\r\n\r\nhello"+chunked("3\r\nabc\r\n0\r\n\r\n")+"GET /bad HTTP/1.1\r\n\r\n"+get)
	want := []string{"GET / ", "POST / hello", "POST / abc", "violation authority.malformed"}
	if !slices.Equal(s.notes(), want) || strings.Count(got, "HTTP/1.1 200 OK") != 3 {
		t.Errorf("the handler saw %q; answered %q", s.notes(), got)
	}
}

func TestStandInCannotBeForged(t *testing.T) {
	s := newServer(Limits{}, nil)
	exchange(t, s.tcp(t), violationHead)
	if want := []string{"violation method.unknown"}; !slices.Equal(s.notes(), want) {
		t.Errorf("the handler saw %q", s.notes())
	}
	if v := NewConn(nil, Limits{}).Violation(violationMethod); v != nil { // HTTP/2 carries any method
		t.Errorf("a violation out of nothing: %v", v)
	}
}

func TestKeepAliveOverTheFilter(t *testing.T) {
	s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	addr := s.tcp(t)
	tr := &http.Transport{MaxConnsPerHost: 2}
	defer tr.CloseIdleConnections()
	body := strings.Repeat("0123456789", 10<<10)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 50 {
				var r io.Reader = strings.NewReader(body)
				if i%2 == 0 {
					r = io.MultiReader(r) // of unknown length: chunked
				}
				resp, err := (&http.Client{Transport: tr}).Post("http://"+addr, "text/plain", r)
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(b) != body {
					t.Errorf("echo of %d bytes, %v", len(b), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// handshaking is a listener whose connections are filters over TLS.
type handshaking struct {
	net.Listener
	config *tls.Config
}

func (h handshaking) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(tls.Server(c, h.config), Limits{AllowConnect: true}), nil
}

func TestFilterOverTLS(t *testing.T) {
	certified := httptest.NewTLSServer(nil) // for its certificate and a client that trusts it
	defer certified.Close()
	s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "CONNECT" {
			io.Copy(w, r.Body)
			return
		}
		c := r.Context().Value(connKey{}).(*Conn)
		conn, rw, err := http.NewResponseController(w).Hijack() // ends a pending read by a deadline in the past
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		below, prefix, err := c.Detach(rw.Reader)
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(below, "HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(below, io.MultiReader(bytes.NewReader(prefix), below))
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { s.Serve(handshaking{l, &tls.Config{Certificates: certified.TLS.Certificates}}); close(served) }()
	defer func() { s.Close(); <-served }()

	trust := certified.Client().Transport.(*http.Transport).TLSClientConfig
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}
	defer client.CloseIdleConnections()
	for range 20 {
		resp, err := client.Post("https://"+l.Addr().String(), "text/plain", io.MultiReader(strings.NewReader("hello")))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, get+"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n")
	br := bufio.NewReader(c)
	for range 2 {
		if resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
	}
	io.WriteString(c, "raw\r\n")
	if line, err := br.ReadString('\n'); line != "raw\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

func TestExpectedContinueComesBeforeTheFirstChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(Limits{}, nil)
		c, stop := s.dial()
		defer stop()
		br := bufio.NewReader(c)
		io.WriteString(c, post+"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		if line, err := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		br.ReadString('\n')
		io.WriteString(c, "2\r\nok\r\n0\r\n\r\n")
		if line, err := br.ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if want := []string{"POST / ok"}; !slices.Equal(s.notes(), want) {
			t.Errorf("the handler saw %q", s.notes())
		}
	})
}

func TestChunkedHeadWaitsForItsFirstChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		called := make(chan struct{}, 1)
		s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) { called <- struct{}{} })
		c, stop := s.dial()
		defer stop()
		go io.Copy(io.Discard, c)
		io.WriteString(c, chunked(""))
		io.WriteString(c, "5\r") // still no line
		<-time.After(30 * time.Second)
		select {
		case <-called:
			t.Fatal("the handler ran before the first chunk was known to be in order")
		default:
		}
		io.WriteString(c, "\n")
		synctest.Wait()
		if len(called) != 1 {
			t.Fatal("the handler did not run")
		}
	})
}

func TestSlowHeadIsRefusedAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(Limits{}, nil)
		c, stop := s.dial()
		defer stop()
		<-time.After(40 * time.Second) // a quiet client is the server's concern
		start := time.Now()
		go func() { // one byte a second
			for i := range get {
				if _, err := io.WriteString(c, get[i:i+1]); err != nil {
					return
				}
				<-time.After(time.Second)
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 400 || time.Since(start) != defaultHeaderTime {
			t.Fatalf("%v, %v after %v", resp, err, time.Since(start))
		}
		io.Copy(io.Discard, resp.Body)
		if want := []string{"violation limit.time"}; !slices.Equal(s.notes(), want) {
			t.Errorf("the handler saw %q", s.notes())
		}
		stop()
		<-time.After(time.Minute) // the writer meets the closed pipe
	})
}

func TestIdleConnectionIsTheServersToClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(Limits{}, nil)
		c, stop := s.dial()
		defer stop()
		io.WriteString(c, get)
		start := time.Now()
		b, err := io.ReadAll(c)
		if err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.1 200 OK")) || time.Since(start) != s.IdleTimeout {
			t.Errorf("%q, %v after %v", b, err, time.Since(start))
		}
	})
}

func TestStalledBodyBreaksOff(t *testing.T) {
	for _, head := range []string{post + "Content-Length: 10\r\n\r\nhello", chunked("a\r\nhello")} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(Limits{Progress: 30 * time.Second}, nil)
			c, stop := s.dial()
			defer stop()
			io.WriteString(c, head)
			<-time.After(20 * time.Second)
			io.WriteString(c, "w") // progress
			start := time.Now()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != 400 || time.Since(start) != 30*time.Second {
				t.Fatalf("%v, %v after %v", resp, err, time.Since(start))
			}
			if want := []string{"violation limit.time"}; !slices.Equal(s.notes(), want) {
				t.Errorf("the handler saw %q", s.notes())
			}
		})
	}
}

func TestTornNextHeadDoesNotDisturbTheAnswerBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended error
		s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) {
			<-time.After(time.Minute)
			ended = r.Context().Err()
			io.WriteString(w, "done")
		})
		c, stop := s.dial()
		defer stop()
		io.WriteString(c, get+"GET /second HT")
		br := bufio.NewReader(c)
		for _, want := range []int{200, 400} {
			resp, err := http.ReadResponse(br, nil)
			if err != nil || resp.StatusCode != want {
				t.Fatal(resp, err)
			}
			io.Copy(io.Discard, resp.Body)
		}
		if ended != nil {
			t.Errorf("the first request was cancelled: %v", ended)
		}
	})
}

func TestClientThatLeavesCancelsItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(cancelled)
		})
		c, stop := s.dial()
		defer stop()
		io.WriteString(c, get)
		synctest.Wait()
		c.Close()
		<-cancelled
	})
}

func TestDetachHandsOverEveryByte(t *testing.T) {
	for name, head := range map[string]string{
		"connect":   "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
		"websocket": "GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		tls := "\x16\x03\x01\x02\x00\x01\n\x00\r\n\x00 early"
		for _, early := range []string{"", "\x16\x03\x01 early", tls, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n" + tls, strings.Repeat(tls, 1000), "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n and more"} {
			if name == "websocket" && strings.Contains(early, "\n\x00") {
				continue // a client waits for the 101 before it sends frames
			}
			t.Run(fmt.Sprintf("%s %.40q", name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tunnel(t, head, early) })
			})
		}
	}
}

func tunnel(t *testing.T, head, early string) {
	var below net.Conn
	s := newServer(Limits{AllowConnect: true}, func(w http.ResponseWriter, r *http.Request) {
		synctest.Wait() // let the server's background read see the early bytes
		c := r.Context().Value(connKey{}).(*Conn)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rest, prefix, err := c.Detach(rw.Reader)
		if err != nil {
			t.Error(err)
			return
		}
		below = rest
		io.WriteString(rest, "HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(rest, io.MultiReader(bytes.NewReader(prefix), rest))
	})
	c, stop := s.dial()
	defer stop()
	io.WriteString(c, head+early)
	answer := make([]byte, len("HTTP/1.1 200 OK\r\n\r\n"))
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Hour) // no deadline is left behind
	late := "\x00\r\n\xff not HTTP at all"
	go io.WriteString(c, late)
	echo := make([]byte, len(early+late))
	if _, err := io.ReadFull(c, echo); err != nil || string(echo) != early+late {
		t.Fatalf("%q, %v", echo, err)
	}
	if _, wrapped := below.(*Conn); wrapped {
		t.Error("Detach returned the filter itself")
	}
}

func TestDetachRefusesWithinABody(t *testing.T) {
	c := NewConn(&script{segments: [][]byte{[]byte(post + "Upgrade: x\r\nContent-Length: 5\r\n\r\nhe")}}, Limits{})
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Detach(nil); err == nil {
		t.Error("detached within a body")
	}
}
