package proxy

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"postern/internal/core/gate"
)

// both runs a test with HTTP/1.1 on both sides and with HTTP/2 on both sides.
func both(t *testing.T, rules func() []func(*world), f func(t *testing.T, w *world, h2 bool)) {
	for _, h2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "h1", true: "h2"}[h2], func(t *testing.T) {
			w := newWorld(t, allow("a.test"))
			w.upstream.useH2.Store(h2)
			for _, change := range rules() {
				change(w)
			}
			f(t, w.start(), h2)
		})
	}
}

func plain() []func(*world) { return nil }

func TestEventsArriveAsTheyAreSent(t *testing.T) { // C13
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		next := make(chan string)
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			for e := range next {
				fmt.Fprintf(c, "%x\r\n%s\r\n", len(e), e)
			}
			io.WriteString(c, "0\r\n\r\n")
		}, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			rw.(http.Flusher).Flush()
			for e := range next {
				io.WriteString(rw, e)
				rw.(http.Flusher).Flush()
			}
		})
		resp, err := w.client(h2).Get("https://a.test/") // returns with the head, before any event
		must(t, err)
		defer resp.Body.Close()
		for i := range 5 {
			event := fmt.Sprintf("data: %d\n\n", i)
			next <- event
			got := make([]byte, len(event))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != event {
				t.Fatalf("%q, %v", got, err)
			}
		}
		close(next)
		if b, err := io.ReadAll(resp.Body); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		w.passed(answer{Response: resp})
	})
}

func TestBothDirectionsFlowAtOnceAndEndWithTrailers(t *testing.T) { // C12
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTrailer: Grpc-Status\r\nTransfer-Encoding: chunked\r\n\r\n")
			b := make([]byte, 1<<10)
			for {
				n, err := r.Body.Read(b)
				if n > 0 {
					fmt.Fprintf(c, "%x\r\n%s\r\n", n, b[:n])
				}
				if err != nil {
					break
				}
			}
			fmt.Fprintf(c, "0\r\nGrpc-Status: 0\r\nX-Sum: %s\r\nSet-Cookie: a=b\r\n\r\n", r.Trailer.Get("X-Sum"))
		}, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", "Grpc-Status")
			rw.(http.Flusher).Flush()
			b := make([]byte, 1<<10)
			for {
				n, err := r.Body.Read(b)
				rw.Write(b[:n])
				rw.(http.Flusher).Flush()
				if err != nil {
					break
				}
			}
			rw.Header().Set("Grpc-Status", "0")
			rw.Header().Set(http.TrailerPrefix+"X-Sum", r.Trailer.Get("X-Sum"))
		})
		pr, pw := io.Pipe()
		r, err := http.NewRequest("POST", "https://a.test/svc/Echo", pr)
		must(t, err)
		r.Header.Set("Te", "trailers")
		r.Trailer = http.Header{"X-Sum": nil}
		answered := make(chan *http.Response, 1)
		go func() {
			resp, err := w.client(h2).Do(r)
			if err != nil {
				t.Error(err)
			}
			answered <- resp
		}()
		_, err = io.WriteString(pw, "first")
		must(t, err)
		resp := <-answered
		defer resp.Body.Close()
		for i, word := range []string{"first", "second", "third"} {
			if i > 0 {
				_, err = io.WriteString(pw, word)
				must(t, err)
			}
			got := make([]byte, len(word))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != word {
				t.Fatalf("%q, %v", got, err)
			}
		}
		r.Trailer["X-Sum"] = []string{"16"}
		pw.Close()
		if b, err := io.ReadAll(resp.Body); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if resp.Trailer.Get("Grpc-Status") != "0" || resp.Trailer.Get("X-Sum") != "16" {
			t.Errorf("trailer %v", resp.Trailer)
		}
		seen, o := w.passed(answer{Response: resp})
		if seen.Header.Get("Te") != "trailers" || o.BytesIn != 16 || o.BytesOut != 16 {
			t.Errorf("te %q, %+v", seen.Header.Get("Te"), o)
		}
	})
}

func TestATrailerDoesNotReplaceAHeaderOfItsName(t *testing.T) {
	w := begin(t, allow("a.test"))
	w.sink.says("HTTP/1.1 200 OK\r\nX-Both: head\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Both: tail\r\nContent-Length: 7\r\nAlt-Svc: h3\r\n\r\n")
	a := w.ask(w.tls("a.test"), get("/", "a.test"))
	if a.Header.Get("X-Both") != "head" || a.Trailer.Get("X-Both") != "tail" || len(a.Trailer) != 1 {
		t.Errorf("header %v, trailer %v", a.Header, a.Trailer)
	}
}

func TestAnswersWithoutABody(t *testing.T) {
	for name, test := range map[string]struct {
		method, raw, want string
	}{
		"HEAD":                 {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nX-A: b\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nX-A: b\r\n\r\n"},
		"HEAD without length":  {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"},
		"204":                  {"GET", "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"},
		"304":                  {"GET", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n"},
		"empty":                {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"early hints":          {"GET", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"no type is invented":  {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"},
		"a status of its own":  {"GET", "HTTP/1.1 299 Fine\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 299 status code 299\r\nContent-Length: 0\r\n\r\n"},
		"two of the same name": {"GET", "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: 1\r\nX-A: 2\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"))
			w.sink.says(test.raw)
			c := w.tls("a.test")
			br := bufio.NewReader(c)
			for range 2 {
				_, err := io.WriteString(c, test.method+" / HTTP/1.1\r\nHost: a.test\r\n\r\n")
				must(t, err)
				var got strings.Builder
				for line := ""; line != "\r\n"; {
					line, err = br.ReadString('\n')
					must(t, err)
					if !strings.HasPrefix(line, "Date: ") {
						got.WriteString(line)
					}
				}
				if _, body, _ := strings.Cut(test.want, "\r\n\r\n"); body != "" {
					io.CopyN(&got, br, int64(len(body)))
				}
				if got.String() != test.want {
					t.Errorf("%q, want %q", got.String(), test.want)
				}
			}
		})
	}
}

func TestABrokenAnswerBreaksVisibly(t *testing.T) {
	for name, raw := range map[string]string{
		"length":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"chunked":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"bad chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
	} {
		both(t, plain, func(t *testing.T, w *world, h2 bool) {
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
				io.WriteString(c, raw)
				c.Close()
			}, func(rw http.ResponseWriter, r *http.Request) {
				io.WriteString(rw, "half")
				rw.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
			resp, err := w.client(h2).Get("https://a.test/")
			must(t, err)
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(b) != "half" || err == nil {
				t.Errorf("%s: %q, %v", name, b, err)
			}
			if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonUpstream || o.BytesOut != 4 || o.Status != 200 || o.Detail == "" {
				t.Errorf("%+v, %+v", d, o)
			}
		})
	}
}

func TestAnUpstreamThatBreaksHTTP(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":          "",
		"no HTTP":          "SSH-2.0-x\r\n\r\n",
		"a low status":     "HTTP/1.1 042 Odd\r\nContent-Length: 0\r\n\r\n",
		"status zero":      "HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n",
		"two lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"an endless head":  "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 11<<20) + "\r\n\r\n",
		"an uninvited 101": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"))
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				io.WriteString(c, raw)
				c.Close()
			}, nil)
			c := w.tls("a.test")
			br := bufio.NewReader(c)
			for range 2 { // the sandbox's connection is none the worse
				_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi")
				must(t, err)
				if a := w.read(br, "POST"); a.StatusCode != http.StatusBadGateway || a.reason() != gate.ReasonUpstream {
					t.Errorf("%d %q", a.StatusCode, a.body)
				}
				if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonUpstream || o.Status != 502 {
					t.Errorf("%+v, %+v", d, o)
				}
			}
		})
	}
}

func TestAClientWaitsForContinue(t *testing.T) {
	w := begin(t, allow("a.test", methods(gate.POST)))
	w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		if r.URL.Path == "/refuses" {
			io.WriteString(c, "HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
			c.Close()
			return
		}
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
	}, nil)
	for _, framing := range []string{"Content-Length: 5\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
		body := "hello"
		if framing[0] == 'T' {
			body = "5\r\nhello\r\n0\r\n\r\n"
		}
		expect := func(method, path string) (net.Conn, *bufio.Reader) {
			c := w.tls("a.test")
			_, err := io.WriteString(c, method+" "+path+" HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n"+framing)
			must(t, err)
			return c, bufio.NewReader(c)
		}
		c, br := expect("POST", "/")
		if line, err := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		br.ReadString('\n')
		_, err := io.WriteString(c, body)
		must(t, err)
		a := w.read(br, "POST")
		w.passed(a)
		if a.body != "hello" || a.Close {
			t.Errorf("%q, close %v", a.body, a.Close)
		}

		_, br = expect("POST", "/refuses") // the upstream says no: no 100, and the connection is not used again
		a = w.read(br, "POST")
		w.passed(a)
		if a.StatusCode != 417 || a.body != "no" || !a.Close {
			t.Errorf("%d %q, close %v", a.StatusCode, a.body, a.Close)
		}

		_, br = expect("PUT", "/") // the policy says no
		a = w.read(br, "PUT")
		w.refused(a, gate.ReasonMethodNotListed)
		if !a.Close {
			t.Error("the connection is kept")
		}
	}
}

// After an answer that came before the body's end nothing on the connection may be taken for a request.
func TestAnUnreadBodyIsNeverARequest(t *testing.T) {
	for _, framing := range []string{"length", "chunked", "chunked, half sent"} {
		for _, path := range []string{"/early", "/denied"} {
			t.Run(framing+" "+path, func(t *testing.T) {
				w := begin(t, allow("a.test", paths("/early", "/inner")))
				w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					io.Copy(io.Discard, r.Body)
				}, nil)
				inner := strings.Repeat(get("/inner", "a.test"), 40)
				head, body := "POST "+path+" HTTP/1.1\r\nHost: a.test\r\n", ""
				switch framing {
				case "length":
					head += "Content-Length: 1000000\r\n\r\n"
					body = inner
				default:
					head += "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
					body = "f0000\r\n" + inner
				}
				c := w.tls("a.test")
				_, err := io.WriteString(c, head)
				must(t, err)
				if framing == "chunked, half sent" {
					_, err := io.WriteString(c, "f00")
					must(t, err)
					body = body[3:]
				}
				br := bufio.NewReader(c)
				a := w.read(br, "POST")
				if !a.Close {
					t.Error("the connection is kept")
				}
				_, err = io.WriteString(c, body)
				must(t, err)
				c.CloseWrite()
				if rest, err := io.ReadAll(br); len(rest) > 0 || err != nil {
					t.Errorf("more answers: %q, %v", rest, err)
				}
				w.proxy.Close()
				for _, r := range w.log.rest() {
					if r.Path != path {
						t.Errorf("recorded %+v", r)
					}
				}
			})
		}
	}
}

// A client that sends all before it reads gets to see the refusal of a large body.
func TestALargeRefusedBodyDoesNotResetTheConnection(t *testing.T) {
	w := newWorld(t, allow("a.test", paths("/ok")))
	w.limits.Body = 1 << 20
	w.start()
	body := strings.Repeat("x", 20<<20)
	for _, test := range []struct {
		path, framing string
		want          gate.Reason
		verdict       string
	}{
		{"/no", "length", gate.ReasonPathNotListed, "deny"},
		{"/no", "chunked", gate.ReasonPathNotListed, "deny"},
		{"/ok", "length", gate.ReasonLimitBody, "deny"},
		{"/ok", "chunked", gate.ReasonLimitBody, "allow"},
	} {
		c := w.tls("a.test")
		head := "POST " + test.path + " HTTP/1.1\r\nHost: a.test\r\n"
		var err error
		if test.framing == "length" {
			_, err = io.WriteString(c, head+"Content-Length: "+itoa(len(body))+"\r\n\r\n"+body)
		} else {
			_, err = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n"+hex(len(body))+"\r\n"+body+"\r\n0\r\n\r\n")
		}
		must(t, err)
		a := w.read(bufio.NewReader(c), "POST")
		if a.reason() != test.want || !a.Close {
			t.Errorf("%+v: %d %q, close %v", test, a.StatusCode, a.reason(), a.Close)
		}
		if d := w.log.next(t); d.Verdict != test.verdict {
			t.Errorf("%+v: %+v", test, d)
		} else if test.verdict == "allow" {
			if o := w.log.next(t); o.Reason != test.want || o.Status != 413 {
				t.Errorf("%+v: %+v", test, o)
			}
		}
	}
}

func TestASmallRefusedBodyKeepsTheConnection(t *testing.T) {
	w := begin(t, allow("a.test", methods(gate.GET)))
	c := w.tls("a.test")
	br := bufio.NewReader(c)
	_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 70000\r\n\r\n"+strings.Repeat("x", 70000)+get("/", "a.test"))
	must(t, err)
	w.refusedOne(w.read(br, "POST"), gate.ReasonMethodNotListed)
	w.passedOne(w.read(br, "GET"))
}

func TestADeniedPushIsReadToItsEnd(t *testing.T) {
	w := begin(t, allow("b.test"))
	c := w.tls("a.test")
	answered := make(chan answer, 1)
	go func() { answered <- w.read(bufio.NewReader(c), "POST") }()
	head := "POST /acme/widgets.git/git-receive-pack HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
	_, err := io.WriteString(c, head+"80000\r\n"+strings.Repeat("x", 0x80000)+"\r\n")
	must(t, err)
	select {
	case a := <-answered:
		t.Errorf("answered before the end: %q", a.body)
	default:
	}
	_, err = io.WriteString(c, "0\r\n\r\n")
	must(t, err)
	if a := <-answered; a.StatusCode != 200 || !strings.Contains(a.body, "unpack postern refused") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	w.recordedDenial(gate.ReasonHostNotListed)
}

func TestManyRequestsOnManyStreams(t *testing.T) {
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		echo := func(r *http.Request) []byte { b, _ := io.ReadAll(r.Body); return append(b, r.RequestURI...) }
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			b := echo(r)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		}, func(rw http.ResponseWriter, r *http.Request) { rw.Write(echo(r)) })
		c := w.client(h2)
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(1000)
		for range 16 {
			wg.Go(func() {
				for {
					i := left.Add(-1)
					if i < 0 {
						return
					}
					path := fmt.Sprintf("/%d", i)
					resp, err := c.Post("https://a.test"+path, "text/plain", strings.NewReader("body"))
					if err != nil {
						t.Error(err)
						return
					}
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if string(b) != "body"+path || err != nil {
						t.Errorf("%q, %v", b, err)
					}
				}
			})
		}
		wg.Wait()
		seen, records := w.sink.take(), w.log.rest()
		if len(seen) != 1000 || len(records) != 2000 {
			t.Errorf("%d requests, %d records", len(seen), len(records))
		}
		if n := w.proxy.Limits.Connections(); h2 && n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestUnboundedBodiesKeepMemoryFlat(t *testing.T) {
	const size, most = bulk, 40 << 20
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			chunk := make([]byte, 1<<16)
			for range size >> 16 {
				fmt.Fprintf(c, "%x\r\n", len(chunk))
				c.Write(chunk)
				io.WriteString(c, "\r\n")
			}
			fmt.Fprintf(c, "0\r\nX-Sum: %d\r\n\r\n", n)
		}, func(rw http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			io.CopyN(rw, zeros{}, size)
			rw.Header().Set(http.TrailerPrefix+"X-Sum", fmt.Sprint(n))
		})
		runtime.GC()
		var before, m runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := http.NewRequest("POST", "https://a.test/", io.LimitReader(zeros{}, size))
		must(t, err)
		resp, err := w.client(h2).Do(r)
		must(t, err)
		defer resp.Body.Close()
		buf, total := make([]byte, 1<<16), int64(0)
		for i := 0; ; i++ {
			n, err := resp.Body.Read(buf)
			total += int64(n)
			if i%500 == 0 {
				if runtime.ReadMemStats(&m); m.HeapAlloc > before.HeapAlloc+most {
					t.Fatalf("%d MiB more than before", (m.HeapAlloc-before.HeapAlloc)>>20)
				}
			}
			if err == io.EOF {
				break
			}
			must(t, err)
		}
		if total != size || resp.Trailer.Get("X-Sum") != fmt.Sprint(size) {
			t.Errorf("%d bytes down, %q up", total, resp.Trailer.Get("X-Sum"))
		}
		if _, o := w.passed(answer{Response: resp}); o.BytesIn != size || o.BytesOut != size {
			t.Errorf("%+v", o)
		}
	})
}

func TestBodiesArriveUnchanged(t *testing.T) {
	both(t, plain, func(t *testing.T, w *world, h2 bool) {
		w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		}, func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) })
		c := w.client(h2)
		for _, size := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 1 << 20, 3<<20 + 7} {
			b := make([]byte, size)
			rand.Read(b)
			for _, body := range []io.Reader{bytes.NewReader(b), io.MultiReader(bytes.NewReader(b))} {
				r, err := http.NewRequest("POST", "https://a.test/", body)
				must(t, err)
				if a := w.do(c, r); a.body != string(b) {
					t.Errorf("%d bytes: %d came back", size, len(a.body))
				}
			}
		}
	})
}
