package hello

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"postern/internal/core/gate"
)

// script is a connection that reads the given segments, then EOF.
type script struct {
	net.Conn
	segments [][]byte
	reads    int
}

func (s *script) Read(p []byte) (int, error) {
	s.reads++
	for len(s.segments) > 0 && len(s.segments[0]) == 0 {
		s.segments = s.segments[1:]
	}
	if len(s.segments) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.segments[0])
	s.segments[0] = s.segments[0][n:]
	return n, nil
}

func (*script) SetReadDeadline(time.Time) error { return nil }

func peek(segments ...[]byte) (First, *Conn, error) {
	return Peek(&script{segments: segments}, time.Time{})
}

func reason(err error) gate.Reason {
	var f *gate.Failure
	if errors.As(err, &f) {
		return f.Reason
	}
	return gate.ReasonNone
}

// recorder keeps what a TLS client writes and hangs up when it waits for the answer.
type recorder struct {
	net.Conn
	wrote bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error)    { return r.wrote.Write(p) }
func (*recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// capture is the ClientHello that crypto/tls sends for a configuration.
func capture(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	var r recorder
	if err := tls.Client(&r, c).Handshake(); err == nil {
		t.Fatal("a handshake with nobody succeeded")
	}
	if r.wrote.Len() == 0 {
		t.Fatal("the client wrote no hello")
	}
	return r.wrote.Bytes()
}

func configs() map[string]*tls.Config {
	return map[string]*tls.Config{
		"default":    {ServerName: "api.example.com"},
		"tls12":      {ServerName: "api.example.com", MaxVersion: tls.VersionTLS12},
		"tls13":      {ServerName: "api.example.com", MinVersion: tls.VersionTLS13},
		"h2":         {ServerName: "a.test", NextProtos: []string{"h2", "http/1.1"}},
		"http11":     {ServerName: "a.test", NextProtos: []string{"http/1.1"}},
		"h2 alone":   {ServerName: "grpc.example.com", NextProtos: []string{"h2"}},
		"upper":      {ServerName: "API.Example.COM"},
		"classical":  {ServerName: "a.test", CurvePreferences: []tls.CurveID{tls.X25519}},
		"many alpn":  {ServerName: "a.test", NextProtos: strings.Split("a b c d e f g h i j k l", " ")},
		"long":       {ServerName: strings.Repeat("a.", 120) + "test"},
		"a-label":    {ServerName: "xn--bcher-kva.example"},
		"underscore": {ServerName: "a_b.example.com"},
	}
}

// split cuts a hello at every size n: TCP segments of n bytes.
func split(b []byte, n int) [][]byte { return slices.Collect(slices.Chunk(b, n)) }

// refragment puts the handshake bytes of a hello into records of n bytes.
func refragment(hello []byte, n int) []byte {
	var out []byte
	for chunk := range slices.Chunk(hello[recordHeader:], n) {
		out = append(out, recordHandshake, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(chunk)))
		out = append(out, chunk...)
	}
	return out
}

func TestClientHellosOfEveryConfigurationAreRead(t *testing.T) {
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			c.InsecureSkipVerify = true
			raw := capture(t, c)
			for _, stream := range [][]byte{raw, refragment(raw, 1), refragment(raw, 7), refragment(raw, len(raw)-recordHeader-1)} {
				for _, n := range []int{1, 2, 5, 7, 100, len(stream)} {
					f, conn, err := peek(split(stream, n)...)
					if err != nil {
						t.Fatalf("segments of %d: %v", n, err)
					}
					if f.Kind != TLS || f.Hello.ServerName.String() != strings.ToLower(c.ServerName) || f.Hello.RawName != c.ServerName {
						t.Fatalf("segments of %d: %+v", n, f)
					}
					if !slices.Equal(f.Hello.ALPN, c.NextProtos) || f.Hello.ECH {
						t.Fatalf("segments of %d: %+v", n, f)
					}
					if f.Hello.TLS12 != (c.MinVersion != tls.VersionTLS13) || f.Hello.TLS13 != (c.MaxVersion != tls.VersionTLS12) {
						t.Fatalf("versions: %+v", f)
					}
					if got, _ := io.ReadAll(conn); !bytes.Equal(got, stream) {
						t.Fatalf("segments of %d: the replay differs", n)
					}
				}
			}
		})
	}
}

func TestHelloSplitInTwoAtEveryByteIsRead(t *testing.T) {
	raw := capture(t, &tls.Config{ServerName: "a.test", NextProtos: []string{"h2"}})
	for i := 1; i < len(raw); i++ {
		f, _, err := peek(slices.Clone(raw[:i]), slices.Clone(raw[i:]))
		if err != nil || f.Hello.ServerName.String() != "a.test" {
			t.Fatalf("split at %d: %+v, %v", i, f, err)
		}
		two := append(refragment(raw[:recordHeader+max(1, i-recordHeader)], 1<<14), refragment(raw[max(1, i-recordHeader):], 1<<14)...)
		if f, _, err = peek(two); err != nil || f.Hello.ServerName.String() != "a.test" {
			t.Fatalf("records split at %d: %+v, %v", i, f, err)
		}
	}
}

func TestTruncatedHelloIsRefusedAtEveryByte(t *testing.T) {
	raw := capture(t, &tls.Config{ServerName: "a.test"})
	for i := 1; i < len(raw); i++ {
		if f, _, err := peek(raw[:i]); f.Kind != TLS || reason(err) != gate.ReasonMalformedHello {
			t.Fatalf("cut at %d: %+v, %v", i, f, err)
		}
	}
}

// build makes a hello of one record from raw extensions.
func build(legacy uint16, exts ...[]byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, legacy)
	body = append(body, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	if all := bytes.Join(exts, nil); exts != nil {
		body = binary.BigEndian.AppendUint16(body, uint16(len(all)))
		body = append(body, all...)
	}
	return record(append([]byte{typeClientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...))
}

func record(hand []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{recordHandshake, 3, 1}, uint16(len(hand))), hand...)
}

func ext(id uint16, data ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
}

func vec16(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }

func sni(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(append(list, 0), vec16([]byte(n))...)
	}
	return ext(extServerName, vec16(list)...)
}

var versions = ext(extSupportedVersions, 4, 3, 4, 3, 3)

func manyExtensions(n int) [][]byte {
	out := [][]byte{sni("a.test"), versions}
	for i := len(out); i < n; i++ {
		out = append(out, ext(uint16(0x4000+i)))
	}
	return out
}

func TestStrictClientHello(t *testing.T) {
	good := build(0x0303, sni("a.test"), versions)
	long := slices.Clone(good)
	long[6] = 1 // a handshake of 64 KiB and more
	other := slices.Clone(good)
	other[5] = 2
	rows := []struct {
		name string
		in   []byte
		want gate.Reason
	}{
		{"plain", good, ""},
		{"tls 1.2 without supported_versions", build(0x0303, sni("a.test")), ""},
		{"grease ech is reported, not refused", build(0x0303, sni("a.test"), versions, ext(extECH, 0, 1, 2)), ""},
		{"64 extensions", build(0x0303, manyExtensions(64)...), ""},

		{"no extensions", build(0x0303), gate.ReasonNoServerName},
		{"no server name", build(0x0303, versions), gate.ReasonNoServerName},
		{"two names", build(0x0303, sni("a.test", "b.test"), versions), gate.ReasonMalformedHello},
		{"two server_name extensions", build(0x0303, sni("a.test"), versions, sni("a.test")), gate.ReasonMalformedHello},
		{"empty name", build(0x0303, sni(""), versions), gate.ReasonMalformedHello},
		{"empty name list", build(0x0303, ext(0, 0, 0), versions), gate.ReasonMalformedHello},
		{"empty server_name", build(0x0303, ext(0), versions), gate.ReasonMalformedHello},
		{"other name type", build(0x0303, ext(0, 0, 4, 1, 0, 1, 'a'), versions), gate.ReasonMalformedHello},
		{"spill in server_name", build(0x0303, ext(0, 0, 4, 0, 0, 1, 'a', 'b'), versions), gate.ReasonMalformedHello},
		{"NUL", build(0x0303, sni("evil.test\x00.a.test"), versions), gate.ReasonMalformedHost},
		{"path", build(0x0303, sni("../../etc/passwd"), versions), gate.ReasonMalformedHost},
		{"wildcard", build(0x0303, sni("*.github.com"), versions), gate.ReasonMalformedHost},
		{"IPv4", build(0x0303, sni("127.0.0.1"), versions), gate.ReasonHostIsAddress},
		{"IPv6", build(0x0303, sni("::1"), versions), gate.ReasonHostIsAddress},
		{"bracketed IPv6", build(0x0303, sni("[::1]"), versions), gate.ReasonMalformedHost},
		{"number", build(0x0303, sni("2130706433"), versions), gate.ReasonHostIsAddress},
		{"port", build(0x0303, sni("a.test:443"), versions), gate.ReasonMalformedHost},
		{"space", build(0x0303, sni("a test"), versions), gate.ReasonMalformedHost},
		{"trailing dot", build(0x0303, sni("a.test."), versions), gate.ReasonMalformedHost},
		{"300 bytes", build(0x0303, sni(strings.Repeat("a", 300)), versions), gate.ReasonMalformedHost},
		{"254 bytes", build(0x0303, sni(strings.Repeat("a.", 125)+"test"), versions), gate.ReasonMalformedHost},
		{"non-ASCII", build(0x0303, sni("bücher.example"), versions), gate.ReasonMalformedHost},
		{"userinfo", build(0x0303, sni("a.test@evil.test"), versions), gate.ReasonMalformedHost},

		{"tls 1.1 by legacy version", build(0x0302, sni("a.test")), gate.ReasonMalformedHello},
		{"tls 1.1 by supported_versions", build(0x0303, sni("a.test"), ext(extSupportedVersions, 2, 3, 2)), gate.ReasonMalformedHello},
		{"odd versions", build(0x0303, sni("a.test"), ext(extSupportedVersions, 3, 3, 4, 3)), gate.ReasonMalformedHello},
		{"no versions", build(0x0303, sni("a.test"), ext(extSupportedVersions, 0)), gate.ReasonMalformedHello},
		{"duplicate unknown extension", build(0x0303, sni("a.test"), ext(0x4444), versions, ext(0x4444)), gate.ReasonMalformedHello},
		{"65 extensions", build(0x0303, manyExtensions(65)...), gate.ReasonMalformedHello},
		{"empty alpn list", build(0x0303, sni("a.test"), versions, ext(extALPN, 0, 0)), gate.ReasonMalformedHello},
		{"empty alpn name", build(0x0303, sni("a.test"), versions, ext(extALPN, 0, 1, 0)), gate.ReasonMalformedHello},
		{"torn alpn", build(0x0303, sni("a.test"), versions, ext(extALPN, 0, 2, 5, 'h')), gate.ReasonMalformedHello},
		{"33 protocols", build(0x0303, sni("a.test"), versions, ext(extALPN, vec16(bytes.Repeat([]byte{1, 'x'}, 33))...)), gate.ReasonMalformedHello},
		{"torn extension", build(0x0303, sni("a.test"), versions, []byte{0, 50, 0, 9, 1}), gate.ReasonMalformedHello},

		{"other message", other, gate.ReasonMalformedHello},
		{"too long", long, gate.ReasonMalformedHello},
		{"empty record", append([]byte{22, 3, 1, 0, 0}, good...), gate.ReasonMalformedHello},
		{"record over the limit", []byte{22, 3, 1, 0x40, 0x01}, gate.ReasonMalformedHello},
		{"alert between fragments", append(refragment(good, 20)[:25], 21, 3, 1, 0, 2, 1, 0), gate.ReasonMalformedHello},
		{"version of no TLS", []byte{22, 2, 1, 0, 5}, gate.ReasonMalformedHello},
		{"bytes after the hello in its record", record(append(slices.Clone(good[recordHeader:]), 0)), gate.ReasonMalformedHello},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			f, _, err := peek(row.in)
			if reason(err) != row.want || (err == nil) != (row.want == "") {
				t.Fatalf("got %v, want %q", err, row.want)
			}
			if f.Kind != TLS {
				t.Fatalf("kind %v", f.Kind)
			}
			if err != nil && !f.Hello.ServerName.IsZero() && row.want != gate.ReasonMalformedHello {
				t.Fatalf("a refused name became a host: %+v", f)
			}
		})
	}
}

func TestECHIsReported(t *testing.T) {
	f, _, err := peek(build(0x0303, sni("outer.test"), versions, ext(extECH, 0)))
	if err != nil || !f.Hello.ECH || f.Hello.ServerName.String() != "outer.test" {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestKinds(t *testing.T) {
	rows := []struct {
		in   string
		kind Kind
		ok   bool
	}{
		{"GET / HTTP/1.1\r\n", HTTP, true},
		{"POST /x", HTTP, true},
		{"gEt / HTTP/1.1", HTTP, true}, // h1 and gate.ParseMethod refuse it in HTTP
		{"M-SEARCH * HTTP/1.1", HTTP, true},
		{"DEAD /", HTTP, true}, // hex digits all
		{"FACE ", HTTP, true},
		{"CONNECT a.test:443 HTTP/1.1", HTTP, true},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP, true},
		{"SSH-2.0-OpenSSH_9.2\r\n", SSH, true},
		{"SSH-", SSH, true},
		{"0032git-upload-pack /p\x00host=h\x00", Git, true},
		{"003bgit-receive-pack /p", Git, true},
		{"SSH", Unknown, false},
		{"GET", Unknown, false},
		{"0032", Unknown, false},
		{"0032hello", Unknown, false},
		{" GET /", Unknown, false},
		{"PING\r\n", Unknown, false},
		{"\x80\x2e\x01\x00\x02", Unknown, false}, // SSLv2
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", Unknown, false},
		{strings.Repeat("A", 40) + " /", Unknown, false},
	}
	for _, row := range rows {
		for _, n := range []int{1, len(row.in)} {
			f, conn, err := peek(split([]byte(row.in), n)...)
			if f.Kind != row.kind || (err == nil) != row.ok {
				t.Errorf("%q by %d: %v, %v", row.in, n, f.Kind, err)
			}
			if !row.ok && reason(err) != gate.ReasonProtocolUnknown {
				t.Errorf("%q: %v", row.in, err)
			}
			if got, _ := io.ReadAll(conn); string(got) != row.in {
				t.Errorf("%q was replayed as %q", row.in, got)
			}
		}
	}
}

func TestSilentClients(t *testing.T) {
	f, _, err := peek()
	if f.Kind != Silent || reason(err) != gate.ReasonProtocolUnknown || !errors.Is(err, io.EOF) {
		t.Errorf("hung up: %v, %v", f.Kind, err)
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		start := time.Now()
		f, _, err := Peek(a, start.Add(5*time.Second))
		if f.Kind != Silent || reason(err) != gate.ReasonProtocolUnknown || time.Since(start) != 5*time.Second {
			t.Errorf("server speaks first: %v, %v", f.Kind, err)
		}
	})
}

func TestSlowHelloEndsAtTheDeadline(t *testing.T) {
	raw := capture(t, &tls.Config{ServerName: "a.test"})
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		go func() { // one byte a second
			for i := range raw {
				if _, err := b.Write(raw[i : i+1]); err != nil {
					return
				}
				<-time.After(time.Second)
			}
		}()
		start := time.Now()
		f, _, err := Peek(a, start.Add(5*time.Second))
		if f.Kind != TLS || reason(err) != gate.ReasonLimitTime || time.Since(start) != 5*time.Second {
			t.Errorf("%v, %v after %v", f.Kind, err, time.Since(start))
		}
		a.Close()
		b.Close()
		<-time.After(time.Second) // the writer meets the closed pipe
	})
}

func TestGarbageAfterAHandshakeByteIsBounded(t *testing.T) {
	for name, b := range map[string][]byte{
		"records of one byte": bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, MaxHello),
		"declared 16 MiB":     append([]byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, make([]byte, 1<<20)...),
	} {
		s := &script{segments: [][]byte{b}}
		_, conn, err := Peek(s, time.Time{})
		if reason(err) != gate.ReasonMalformedHello || len(conn.Buffered()) > MaxPeek {
			t.Errorf("%s: %d bytes, %v", name, len(conn.Buffered()), err)
		}
	}
}

// tcpPair is a connected pair of TCP sockets on loopback.
func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestReplayKeepsTCPsHalvesAndSplice(t *testing.T) {
	inside, captured := tcpPair(t)
	outside, upstream := tcpPair(t)
	raw := capture(t, &tls.Config{ServerName: "a.test"})
	payload := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)

	sent := append(slices.Clone(raw), payload...)
	go func() {
		inside.Write(sent)
		inside.CloseWrite()
	}()
	first, conn, err := Peek(captured, time.Now().Add(5*time.Second))
	if err != nil || first.Kind != TLS {
		t.Fatal(first, err)
	}
	if conn.NetConn() != net.Conn(captured) {
		t.Fatal("the TCP connection is out of reach")
	}
	received := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(outside)
		received <- b
	}()
	if n, err := io.Copy(upstream, conn); err != nil || n != int64(len(sent)) {
		t.Fatal(n, err)
	}
	upstream.CloseWrite()
	if got := <-received; !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes arrived of %d", len(got), len(sent))
	}
	go func() {
		outside.Write(payload)
		outside.CloseWrite()
	}()
	go func() {
		b, _ := io.ReadAll(inside)
		received <- b
	}()
	if _, err := io.Copy(conn, upstream); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := <-received; !bytes.Equal(got, payload) {
		t.Fatalf("%d bytes came back of %d", len(got), len(payload))
	}
}

func TestHandshakeOverAReplayedConnection(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go tls.Client(client, &tls.Config{ServerName: "a.test", NextProtos: []string{"h2"}}).Handshake()
	_, conn, err := Peek(server, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("seen")
	err = tls.Server(conn, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		if i.ServerName != "a.test" {
			t.Errorf("crypto/tls saw %q", i.ServerName)
		}
		return nil, stop
	}}).Handshake()
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
}

func BenchmarkPeek(b *testing.B) {
	raw := capture(b, &tls.Config{ServerName: "api.example.com", NextProtos: []string{"h2", "http/1.1"}})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := peek(raw); err != nil {
			b.Fatal(err)
		}
	}
}
