package hello

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
)

// oracle asks crypto/tls what it reads in a stream.
func oracle(stream []byte) (info *tls.ClientHelloInfo) {
	conn := &sink{Reader: bytes.NewReader(stream)}
	stop := errors.New("seen")
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		info = i
		return nil, stop
	}}
	if err := tls.Server(conn, cfg).Handshake(); !errors.Is(err, stop) {
		return nil
	}
	return info
}

type sink struct {
	net.Conn
	io.Reader
}

func (s *sink) Read(p []byte) (int, error)     { return s.Reader.Read(p) }
func (*sink) Write(p []byte) (int, error)      { return len(p), nil }
func (*sink) SetWriteDeadline(time.Time) error { return nil }
func (*sink) SetDeadline(time.Time) error      { return nil }
func (*sink) Close() error                     { return nil }

// FuzzClientHello: what is accepted, crypto/tls reads the same way or refuses; what crypto/tls accepts is refused only for a
// reason by which this parser is known to be stricter; how the bytes were cut never matters; nothing is read past the limit.
func FuzzClientHello(f *testing.F) {
	for _, c := range configs() {
		c.InsecureSkipVerify = true
		f.Add(capture(f, c), uint8(7))
	}
	f.Add(build(0x0303, sni("a.test", "b.test"), versions), uint8(1))
	f.Add(build(0x0303, sni("evil.test\x00.a.test"), versions), uint8(3))
	f.Add(build(0x0303, versions, ext(extECH, 0)), uint8(3))
	f.Add(refragment(build(0x0303, sni("a.test"), versions), 9), uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint8) {
		first, conn, err := peek(slices.Clone(stream))
		if got, _ := io.ReadAll(conn); !bytes.Equal(got, stream) {
			t.Fatal("the replay differs")
		}
		again, _, err2 := peek(split(slices.Clone(stream), int(cut)+1)...)
		if again.Kind != first.Kind || again.Hello.RawName != first.Hello.RawName || reason(err) != reason(err2) {
			t.Fatalf("cutting changed the verdict: %+v %v, %+v %v", first, err, again, err2)
		}
		info := oracle(stream)
		if info == nil {
			return
		}
		if err != nil {
			if r := reason(err); r == gate.ReasonProtocolUnknown || r == gate.ReasonNone || r == gate.ReasonLimitTime {
				t.Fatalf("crypto/tls accepts it: %v", err)
			}
			var fail *gate.Failure
			if errors.As(err, &fail); fail.Reason == gate.ReasonMalformedHello && !slices.ContainsFunc(stricter, func(s string) bool { return fail.Detail == s }) {
				t.Fatalf("crypto/tls accepts it: %v", err)
			}
			return
		}
		h := first.Hello
		if !strings.EqualFold(info.ServerName, h.ServerName.String()) || !slices.Equal(info.SupportedProtos, h.ALPN) {
			t.Fatalf("crypto/tls reads %q %q, we read %+v", info.ServerName, info.SupportedProtos, h)
		}
		if slices.Contains(info.SupportedVersions, tls.VersionTLS12) != h.TLS12 || slices.Contains(info.SupportedVersions, tls.VersionTLS13) != h.TLS13 {
			t.Fatalf("crypto/tls reads %x, we read %+v", info.SupportedVersions, h)
		}
	})
}

// stricter lists the faults that crypto/tls overlooks in a hello whose name and protocols it can read.
var stricter = []string{
	"a record that is no handshake",             // any record version, and ignored alerts
	"bytes after the ClientHello in its record", // kept for later
	"longer than 16 KiB",                        // 64 KiB
	"its fixed fields are out of order",         // empty cipher suites, session ids over 32 bytes
	"more than 64 extensions",
	"more than 32 application protocols",
	"a torn server_name",                 // other name types are skipped
	"more than one server name",          // of other types
	"offers neither TLS 1.2 nor TLS 1.3", // judged after the callback
}
