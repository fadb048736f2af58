package h1

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// boundaries feeds input byte by byte and returns what comes out and where the filter sees each request end.
func boundaries(input []byte) (out []byte, ends []int) {
	c := NewConn(&script{segments: slices.Collect(slices.Chunk(input, 1))}, Limits{})
	var p [1]byte
	for {
		n, err := c.Read(p[:])
		out = append(out, p[:n]...)
		if err != nil {
			return bytes.TrimSuffix(out, []byte(violationHead)), ends
		}
		if c.phase == inHead && len(c.buf) == 0 {
			ends = append(ends, len(out))
		}
	}
}

// counting counts what is read through it.
type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// netHTTP reads requests as net/http's server does and returns where each complete one ends, and the error after them.
func netHTTP(t *testing.T, stream []byte) (ends []int, err error) {
	src := &counting{r: bytes.NewReader(stream)}
	br := bufio.NewReader(src)
	for {
		if _, err := br.Peek(1); err != nil {
			return ends, nil
		}
		r, err := http.ReadRequest(br)
		if err != nil {
			return ends, err
		}
		if len(r.Header["Host"]) > 1 || r.Host == "" && r.ProtoAtLeast(1, 1) {
			t.Fatalf("a request without one host got through: %q", stream)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return ends, err
		}
		ends = append(ends, src.n-br.Buffered())
	}
}

// FuzzConn: how the input is cut never matters; the output is the input up to the fault; and net/http finds in the output
// exactly the requests that the filter found, each ending at the same byte.
func FuzzConn(f *testing.F) {
	for _, row := range rows {
		if len(row.in) < 4<<10 {
			f.Add([]byte(row.in), []byte{3, 1, 200})
		}
	}
	f.Add([]byte(get+post+"Content-Length: 5\r\n\r\nhello"+chunked("5\r\nhello\r\n0\r\nX: y\r\n\r\n")+get), []byte{50})
	f.Add([]byte(post+"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n5;\r\nhello"), []byte{1})
	f.Fuzz(func(t *testing.T, input, cuts []byte) {
		out, v := pass(t, string(input), max(1, len(input)), Limits{})
		var segments [][]byte
		for rest, i := slices.Clone(input), 0; len(rest) > 0; i++ {
			n := len(rest)
			if i < len(cuts) {
				n = min(n, int(cuts[i])+1)
			}
			segments, rest = append(segments, rest[:n]), rest[n:]
		}
		c := NewConn(&script{segments: segments}, Limits{})
		cut, _ := io.ReadAll(readerOnly{c})
		if got := strings.TrimSuffix(string(cut), violationHead); got != out {
			t.Fatalf("cutting changed the output:\n%q\n%q", out, got)
		}
		if w := c.violation.Load(); (v == nil) != (w == nil) || v != nil && *v != *w {
			t.Fatalf("cutting changed the verdict: %v, %v", v, w)
		}
		single, ends := boundaries(slices.Clone(input))
		if string(single) != out {
			t.Fatalf("single bytes changed the output:\n%q\n%q", out, single)
		}
		theirs, err := netHTTP(t, single)
		if !slices.Equal(ends, theirs) {
			t.Fatalf("requests end at %d, for net/http at %d (%v): %q", ends, theirs, err, single)
		}
		if err != nil && len(ends) > 0 && ends[len(ends)-1] == len(single) {
			t.Fatalf("net/http refuses what is whole: %v: %q", err, single)
		}
	})
}

func TestServerTakesEveryAcceptedTwin(t *testing.T) {
	for _, row := range rows {
		if row.want != "" || strings.Contains(row.name, "2^62") {
			continue
		}
		called := 0
		s := newServer(Limits{}, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			called++
		})
		addr := s.tcp(t)
		last := "GET /last HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
		if strings.Contains(row.in, "HTTP/1.0") {
			last = ""
		}
		ends, err := netHTTP(t, []byte(row.in+last))
		if err != nil {
			t.Fatal(row.name, err)
		}
		got := exchange(t, addr, row.in+last)
		if called != len(ends) || strings.Contains(got, "400 Bad Request") {
			t.Errorf("%s: the handler saw %d of %d requests; answered %q", row.name, called, len(ends), got)
		}
	}
}

// endless is a connection that reads the same bytes again and again.
type endless struct {
	net.Conn
	unit []byte
	rest []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		e.rest = e.unit
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (*endless) SetReadDeadline(time.Time) error { return nil }

var browserHead = "GET /v1/messages?beta=true HTTP/1.1\r\nHost: api.example.com\r\nAccept: application/json\r\n" +
	"Accept-Encoding: gzip, deflate, br\r\nAuthorization: Bearer " + strings.Repeat("x", 100) + "\r\nConnection: keep-alive\r\n" +
	"Content-Type: application/json\r\nUser-Agent: client/1.2.3 (linux; x64)\r\nX-Stainless-Lang: js\r\nX-Stainless-OS: Linux\r\n\r\n"

func BenchmarkRead(b *testing.B) {
	for _, bench := range []struct{ name, unit string }{
		{"head", browserHead},
		{"length 64 KiB", post + "Content-Length: 65536\r\n\r\n" + strings.Repeat("x", 64<<10)},
		{"chunks of 8 KiB", chunked(strings.Repeat("2000\r\n"+strings.Repeat("x", 8<<10)+"\r\n", 8) + "0\r\n\r\n")},
	} {
		for _, filtered := range []bool{false, true} {
			name := bench.name + "/bare"
			var c net.Conn = &endless{unit: []byte(bench.unit)}
			if filtered {
				name, c = bench.name+"/filter", NewConn(c, Limits{})
			}
			b.Run(name, func(b *testing.B) {
				p := make([]byte, 32<<10)
				b.ReportAllocs()
				b.SetBytes(int64(len(bench.unit)))
				for b.Loop() {
					for left := len(bench.unit); left > 0; {
						n, err := c.Read(p[:min(left, len(p))])
						if err != nil {
							b.Fatal(err)
						}
						left -= n
					}
				}
			})
		}
	}
}

func TestSteadyPathAllocatesNothing(t *testing.T) {
	for _, unit := range []string{browserHead, post + "Content-Length: 5\r\n\r\nhello", chunked("5\r\nhello\r\n0\r\n\r\n")} {
		c := NewConn(&endless{unit: []byte(unit)}, Limits{})
		p := make([]byte, 4<<10)
		got := testing.AllocsPerRun(1000, func() {
			for left := len(unit); left > 0; {
				n, err := c.Read(p[:left])
				if err != nil {
					t.Fatal(err)
				}
				left -= n
			}
		})
		if got != 0 {
			t.Errorf("%.20q…: %v allocations a request", unit, got)
		}
	}
}
