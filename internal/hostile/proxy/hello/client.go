package hello

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"postern/internal/core/gate"
)

// Numbers of RFC 8446, RFC 6066, RFC 7301 and RFC 9849.
const (
	recordHandshake = 22
	typeClientHello = 1

	extServerName        = 0
	extALPN              = 16
	extSupportedVersions = 43
	extECH               = 0xfe0d

	versionTLS12 = 0x0303
	versionTLS13 = 0x0304

	maxExtensions = 64 // clients send about twenty
	maxProtocols  = 32 // clients send at most three
)

// ClientHello is what a TLS client says in the clear.
type ClientHello struct {
	ServerName gate.Host // zero when the client named none, or none that is a host name
	RawName    string    // the name as it was sent, at most 255 bytes: hostile, for the audit record alone
	ALPN       []string  // in the client's order; nil when it sent none
	TLS12      bool      // offers TLS 1.2
	TLS13      bool      // offers TLS 1.3
	ECH        bool      // carries an encrypted_client_hello extension, which may be mere grease
}

// assembler joins handshake records until the first message is whole.
type assembler struct {
	pos  int    // where the next record begins in the input
	hand []byte // handshake bytes so far
}

// next looks at the input so far, which only grows from call to call, and returns the ClientHello with its
// header as soon as it is complete, nil before that.
func (a *assembler) next(in []byte) ([]byte, error) {
	for {
		if len(in)-a.pos >= 2 && (in[a.pos] != recordHandshake || in[a.pos+1] != 3) {
			return nil, malformed("a record that is no handshake")
		}
		if len(in)-a.pos < recordHeader {
			return nil, nil
		}
		n := int(binary.BigEndian.Uint16(in[a.pos+3:]))
		if n == 0 {
			return nil, malformed("an empty record")
		}
		if len(a.hand)+n > MaxHello {
			return nil, malformed("longer than 16 KiB")
		}
		if len(in)-a.pos < recordHeader+n {
			return nil, nil
		}
		body := in[a.pos+recordHeader : a.pos+recordHeader+n]
		a.pos += recordHeader + n
		if a.hand == nil {
			a.hand = body[:n:n] // the usual case: one record, nothing copied
		} else {
			a.hand = append(a.hand, body...)
		}
		if done, err := a.whole(); done || err != nil {
			return a.hand, err
		}
	}
}

// whole reports whether hand is one complete ClientHello.
func (a *assembler) whole() (bool, error) {
	if a.hand[0] != typeClientHello {
		return false, malformed("the first handshake message is no ClientHello")
	}
	if len(a.hand) < 4 {
		return false, nil
	}
	want := 4 + (int(a.hand[1])<<16 | int(a.hand[2])<<8 | int(a.hand[3]))
	if want > MaxHello {
		return false, malformed("longer than 16 KiB")
	}
	if len(a.hand) > want {
		return false, malformed("bytes after the ClientHello in its record")
	}
	return len(a.hand) == want, nil
}

// reader takes length-prefixed fields off the front of a message. After a failure ok is false and everything is empty.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) take(n int) []byte {
	if !r.ok || n > len(r.b) {
		r.ok, r.b = false, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() int {
	if b := r.take(1); b != nil {
		return int(b[0])
	}
	return 0
}

func (r *reader) u16() int {
	if b := r.take(2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) vec8() []byte  { return r.take(r.u8()) }
func (r *reader) vec16() []byte { return r.take(r.u16()) }

// all reports whether the reader was consumed exactly.
func (r *reader) all() bool { return r.ok && len(r.b) == 0 }

// parseHello reads a ClientHello with its header (RFC 8446 §4.1.2).
func parseHello(msg []byte) (ClientHello, error) {
	var h ClientHello
	r := reader{msg[4:], true}
	legacy := r.u16()
	r.take(32) // random
	session := r.vec8()
	suites := r.vec16()
	compression := r.vec8()
	if !r.ok || len(session) > 32 || len(suites) == 0 || len(suites)%2 != 0 || !offersNoCompression(compression) {
		return h, malformed("its fixed fields are out of order")
	}
	var exts []byte
	if len(r.b) > 0 {
		exts = r.vec16()
	}
	if !r.all() {
		return h, malformed("its extensions do not fill it")
	}
	return h, h.readExtensions(exts, legacy)
}

func offersNoCompression(methods []byte) bool {
	for _, m := range methods {
		if m == 0 {
			return true
		}
	}
	return false
}

func (h *ClientHello) readExtensions(exts []byte, legacy int) error {
	var seen [maxExtensions]uint16
	named, versioned := false, false
	var nameErr error
	r := reader{exts, true}
	for n := 0; len(r.b) > 0; n++ {
		id := uint16(r.u16())
		data := r.vec16()
		switch {
		case !r.ok:
			return malformed("a torn extension")
		case n == maxExtensions:
			return malformed("more than 64 extensions")
		}
		for _, s := range seen[:n] {
			if s == id {
				return malformed("an extension twice")
			}
		}
		seen[n] = id
		switch id {
		case extServerName:
			// A bad name is reported last, so that the rest of the hello is known beside it.
			named, nameErr = true, h.readServerName(data)
		case extALPN:
			if err := h.readALPN(data); err != nil {
				return err
			}
		case extSupportedVersions:
			versioned = true
			if err := h.readVersions(data); err != nil {
				return err
			}
		case extECH:
			h.ECH = true
		}
	}
	if !versioned {
		h.TLS12 = legacy == versionTLS12
	}
	if !h.TLS12 && !h.TLS13 {
		return malformed("offers neither TLS 1.2 nor TLS 1.3")
	}
	if !named {
		return failure(gate.ReasonNoServerName, "the ClientHello has no server_name", nil)
	}
	return nameErr
}

// readServerName accepts exactly one host_name (RFC 6066 §3) that is a host.
func (h *ClientHello) readServerName(data []byte) error {
	r := reader{data, true}
	list := reader{r.vec16(), true}
	kind, name := list.u8(), list.vec16()
	if !r.all() || !list.ok || kind != 0 || len(name) == 0 {
		return malformed("a torn server_name")
	}
	h.RawName = string(name[:min(len(name), 255)])
	if len(list.b) > 0 {
		return malformed("more than one server name")
	}
	if len(name) > gate.MaxHost {
		return failure(gate.ReasonMalformedHost, "the server name is longer than 253 bytes", nil)
	}
	host, err := gate.ParseHost(h.RawName)
	if err != nil {
		reason, detail := gate.ReasonMalformedHost, "the server name is not a canonical host name"
		var pe *gate.ParseError
		if errors.As(err, &pe) {
			reason, detail = pe.Reason, "the server name: "+pe.Detail
		}
		if _, e := netip.ParseAddr(h.RawName); e == nil {
			reason, detail = gate.ReasonHostIsAddress, "the server name is an IP address"
		}
		return failure(reason, detail, err)
	}
	h.ServerName = host
	return nil
}

// readALPN reads the protocol names (RFC 7301 §3.1).
func (h *ClientHello) readALPN(data []byte) error {
	r := reader{data, true}
	list := reader{r.vec16(), true}
	if !r.all() || len(list.b) == 0 {
		return malformed("a torn list of application protocols")
	}
	for len(list.b) > 0 {
		p := list.vec8()
		if len(p) == 0 {
			return malformed("an empty application protocol")
		}
		if len(h.ALPN) == maxProtocols {
			return malformed("more than 32 application protocols")
		}
		h.ALPN = append(h.ALPN, string(p))
	}
	return nil
}

// readVersions reads supported_versions (RFC 8446 §4.2.1).
func (h *ClientHello) readVersions(data []byte) error {
	r := reader{data, true}
	list := reader{r.vec8(), true}
	if !r.all() || len(list.b) == 0 || len(list.b)%2 != 0 {
		return malformed("a torn list of versions")
	}
	for len(list.b) > 0 {
		switch list.u16() {
		case versionTLS12:
			h.TLS12 = true
		case versionTLS13:
			h.TLS13 = true
		}
	}
	return nil
}
