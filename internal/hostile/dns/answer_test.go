package dns

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"postern/internal/core/gate"
)

func open(time.Time) gate.Reason { return gate.ReasonNone }

func newServer(t interface{ Fatal(...any) }, c Config) *Server {
	if c.Allow == nil {
		c.Allow = open
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// question is one query as a client sends it.
func question(t interface{ Fatal(...any) }, name string, typ dnsmessage.Type, edns bool) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 0x1234, RecursionDesired: true})
	n, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(b.StartQuestions())
	must(b.Question(dnsmessage.Question{Name: n, Type: typ, Class: dnsmessage.ClassINET}))
	if edns {
		must(b.StartAdditionals())
		var h dnsmessage.ResourceHeader
		must(h.SetEDNS0(4096, 0, true))
		must(b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	msg, err := b.Finish()
	must(err)
	return msg
}

func ask(t *testing.T, s *Server, msg []byte) dnsmessage.Message {
	t.Helper()
	reply, _ := s.answer(nil, msg)
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil {
		t.Fatalf("the reply does not parse: %v", err)
	}
	return m
}

func TestAnswers(t *testing.T) {
	s := newServer(t, Config{Seed: [32]byte{1, 2, 3, 4, 5, 6, 7}})
	v4, v6, _ := s.names.Assign(host(t, "api.example.com"))
	long := strings.Repeat("a.", 125) + "aaa."
	for _, c := range []struct {
		name string
		typ  dnsmessage.Type
		code dnsmessage.RCode
		want string // the one answer, "" for none
	}{
		{"api.example.com.", dnsmessage.TypeA, 0, v4.String()},
		{"aPi.eXample.Com.", dnsmessage.TypeA, 0, v4.String()},
		{"api.example.com.", dnsmessage.TypeAAAA, 0, v6.String()},
		{"api.example.com.", dnsmessage.TypeHTTPS, 0, ""},
		{"api.example.com.", dnsmessage.TypeSVCB, 0, ""},
		{"api.example.com.", dnsmessage.TypeTXT, 0, ""},
		{"api.example.com.", dnsmessage.TypeMX, 0, ""},
		{"api.example.com.", dnsmessage.TypeSRV, 0, ""},
		{"api.example.com.", dnsmessage.TypeCNAME, 0, ""},
		{"api.example.com.", dnsmessage.TypeNS, 0, ""},
		{"api.example.com.", dnsmessage.TypeALL, 0, ""},
		{"api.example.com.", dnsmessage.TypeAXFR, 0, ""},
		{"api.example.com.", 10, 0, ""},
		{"api.example.com.", 65399, 0, ""},
		{"_grpc._tcp.example.com.", dnsmessage.TypeSRV, 0, ""},
		{"localhost.", dnsmessage.TypeA, 0, "127.0.0.1"},
		{"LOCALHOST.", dnsmessage.TypeAAAA, 0, "::1"},
		{"app.localhost.", dnsmessage.TypeA, 0, "127.0.0.1"},
		{"app.localhost.", dnsmessage.TypeTXT, 0, ""},
		{reverseOf(v4), dnsmessage.TypePTR, 0, "api.example.com."},
		{reverseOf(v6), dnsmessage.TypePTR, 0, "api.example.com."},
		{strings.ToUpper(reverseOf(v6)), dnsmessage.TypePTR, 0, "api.example.com."},
		{"1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, 0, "localhost."},
		{reverseOf(netip.IPv6Loopback()), dnsmessage.TypePTR, 0, "localhost."},
		{"8.8.8.8.in-addr.arpa.", dnsmessage.TypePTR, codeNXDomain, ""},
		{"01.8.8.8.in-addr.arpa.", dnsmessage.TypePTR, codeNXDomain, ""},
		{"8.8.8.in-addr.arpa.", dnsmessage.TypePTR, codeNXDomain, ""},
		{"8.8.8.8.in-addr.arpa.", dnsmessage.TypeA, 0, ""},
		{"1.ip6.arpa.", dnsmessage.TypePTR, codeNXDomain, ""},
		{"ipv4only.arpa.", dnsmessage.TypeAAAA, 0, ""},
		{"use-application-dns.net.", dnsmessage.TypeA, codeNXDomain, ""},
		{".", dnsmessage.TypeNS, 0, ""},
		{"127.0.0.1.", dnsmessage.TypeA, codeNXDomain, ""},
		{"0x7f000001.", dnsmessage.TypeA, codeNXDomain, ""},
		{"-a.test.", dnsmessage.TypeA, codeNXDomain, ""},
		{"a b.test.", dnsmessage.TypeA, codeNXDomain, ""},
		{"a\x00.test.", dnsmessage.TypeA, codeNXDomain, ""},
		{"*.test.", dnsmessage.TypeA, codeNXDomain, ""},
		{"xn--a.test.", dnsmessage.TypeA, codeNXDomain, ""},
	} {
		for _, edns := range []bool{false, true} {
			m := ask(t, s, question(t, c.name, c.typ, edns))
			got := ""
			if len(m.Answers) == 1 {
				got = body(m.Answers[0])
			}
			if m.RCode != c.code || got != c.want || len(m.Answers) > 1 {
				t.Errorf("%q type %d: %v %q, want %v %q", c.name, c.typ, m.RCode, got, c.code, c.want)
			}
			if len(m.Questions) != 1 || m.Questions[0].Name.String() != c.name || m.Questions[0].Type != c.typ {
				t.Errorf("%q: the question came back as %v", c.name, m.Questions)
			}
			if !m.Response || !m.RecursionAvailable || !m.RecursionDesired || m.Truncated || m.ID != 0x1234 {
				t.Errorf("%q: header %+v", c.name, m.Header)
			}
			if (len(m.Additionals) == 1) != edns {
				t.Errorf("%q: %d additional records, EDNS %v", c.name, len(m.Additionals), edns)
			} else if h := (dnsmessage.ResourceHeader{}); edns {
				h = m.Additionals[0].Header
				if h.Type != dnsmessage.TypeOPT || h.Class != udpPayload || !h.DNSSECAllowed() {
					t.Errorf("%q: OPT %+v", c.name, h)
				}
			}
		}
	}
	if m := ask(t, s, question(t, long, dnsmessage.TypeA, true)); m.RCode != 0 || len(m.Answers) != 1 {
		t.Errorf("a name of 253 bytes: %v", m.RCode)
	}
}

func body(r dnsmessage.Resource) string {
	if r.Header.TTL != ttl || r.Header.Class != dnsmessage.ClassINET {
		return "wrong header"
	}
	switch b := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA).String()
	case *dnsmessage.PTRResource:
		return b.PTR.String()
	}
	return "another type"
}

func reverseOf(a netip.Addr) string {
	var b strings.Builder
	const hex = "0123456789abcdef"
	raw := a.AsSlice()
	for i := len(raw) - 1; i >= 0; i-- {
		if a.Is4() {
			b.WriteString(netip.AddrFrom4([4]byte{3: raw[i]}).String()[6:] + ".")
			continue
		}
		b.Write([]byte{hex[raw[i]&15], '.', hex[raw[i]>>4], '.'})
	}
	return b.String() + map[bool]string{true: "in-addr.arpa.", false: "ip6.arpa."}[a.Is4()]
}

func TestMalformedMessages(t *testing.T) {
	s := newServer(t, Config{})
	good := question(t, "a.test.", dnsmessage.TypeA, false)
	edit := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	opt := func(version byte, n int) []byte {
		b := bytes.Clone(good)
		b[11] = byte(n)
		for range n {
			b = append(b, 0, 0, 41, 4, 208, 0, version, 0, 0, 0, 0)
		}
		return b
	}
	for name, c := range map[string]struct {
		msg  []byte
		code int // -1: no reply
	}{
		"empty":             {nil, -1},
		"eleven bytes":      {good[:11], -1},
		"a response":        {edit(func(b []byte) []byte { b[2] |= 0x80; return b }), -1},
		"header only":       {good[:12], 1},
		"no question":       {edit(func(b []byte) []byte { b[5] = 0; return b[:12] }), 1},
		"two questions":     {edit(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), 1},
		"256 questions":     {edit(func(b []byte) []byte { b[4], b[5] = 1, 0; return b }), 1},
		"an answer":         {edit(func(b []byte) []byte { b[7] = 1; return b }), 1},
		"an authority":      {edit(func(b []byte) []byte { b[8] = 1; return b }), 1},
		"status opcode":     {edit(func(b []byte) []byte { b[2] |= 2 << 3; return b }), 4},
		"update opcode":     {edit(func(b []byte) []byte { b[2] |= 5 << 3; return b }), 4},
		"cut in the name":   {good[:14], 1},
		"cut in the type":   {good[:len(good)-3], 1},
		"pointer to itself": {edit(func(b []byte) []byte { return append(b[:12], 0xc0, 12, 0, 1, 0, 1) }), 1},
		"label of 64 bytes": {edit(func(b []byte) []byte {
			return append(b[:12], append(append([]byte{64}, bytes.Repeat([]byte{'a'}, 64)...), 0, 0, 1, 0, 1)...)
		}), 1},
		"name of 300 bytes": {edit(func(b []byte) []byte {
			return append(append(b[:12], bytes.Repeat([]byte{1, 'a'}, 150)...), 0, 0, 1, 0, 1)
		}), 1},
		"dot within a label": {edit(func(b []byte) []byte { return append(b[:12], 3, 'a', '.', 'b', 0, 0, 1, 0, 1) }), 1},
		"class CH":           {edit(func(b []byte) []byte { b[len(b)-1] = 3; return b }), 5},
		"class ANY":          {edit(func(b []byte) []byte { b[len(b)-1] = 255; return b }), 5},
		"EDNS version 1":     {opt(1, 1), 16},
		"two OPT records":    {opt(0, 2), 1},
		"OPT cut short":      {opt(0, 1)[:len(good)+8], 1},
		"OPT with a name":    {edit(func(b []byte) []byte { b[11] = 1; return append(b, 1, 'x', 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0) }), 1},
	} {
		reply, _ := s.answer(nil, c.msg)
		if c.code < 0 {
			if reply != nil {
				t.Errorf("%s: answered", name)
			}
			continue
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		code := int(m.RCode)
		for _, a := range m.Additionals {
			code = int(a.Header.ExtendedRCode(m.RCode))
		}
		if code != c.code || len(m.Answers) != 0 {
			t.Errorf("%s: code %d, %d answers, want code %d", name, code, len(m.Answers), c.code)
		}
	}
}

func TestQueriesBeyondTheRateAreRefused(t *testing.T) {
	var seen []Query
	left := 2
	s := newServer(t, Config{
		Allow: func(time.Time) gate.Reason {
			if left--; left < 0 {
				return gate.ReasonLimitDNS
			}
			return gate.ReasonNone
		},
		Observe: func(q Query) { seen = append(seen, q) },
	})
	for range 3 {
		ask(t, s, question(t, "A.test.", dnsmessage.TypeA, false))
	}
	if len(seen) != 3 || !seen[1].Answer.IsValid() || seen[2].Answer.IsValid() || seen[2].Reason != gate.ReasonLimitDNS {
		t.Errorf("%+v", seen)
	}
	if seen[0].Name != "A.test" || seen[0].Host != host(t, "a.test") || seen[0].Type != 1 || seen[0].Reason != gate.ReasonNone {
		t.Errorf("%+v", seen[0])
	}
}

func TestFullTableIsRefusedAndReported(t *testing.T) {
	var last Query
	s := newServer(t, Config{Capacity: 1, Observe: func(q Query) { last = q }})
	if m := ask(t, s, question(t, "a.test.", dnsmessage.TypeA, false)); m.RCode != 0 {
		t.Fatal(m.RCode)
	}
	if m := ask(t, s, question(t, "b.test.", dnsmessage.TypeA, false)); m.RCode != dnsmessage.RCodeRefused || last.Reason != gate.ReasonLimitDNS {
		t.Errorf("%v, %+v", m.RCode, last)
	}
	if m := ask(t, s, question(t, "a.test.", dnsmessage.TypeAAAA, false)); m.RCode != 0 || len(m.Answers) != 1 {
		t.Errorf("a name that has addresses: %v", m.RCode)
	}
}

func TestMalformedNameIsReportedWithItsReason(t *testing.T) {
	var last Query
	s := newServer(t, Config{Observe: func(q Query) { last = q }})
	ask(t, s, question(t, "127.0.0.1.", dnsmessage.TypeA, false))
	if last.Reason != gate.ReasonHostIsAddress || !last.Host.IsZero() {
		t.Errorf("%+v", last)
	}
	ask(t, s, question(t, "a b.test.", dnsmessage.TypeA, false))
	if last.Reason != gate.ReasonMalformedHost {
		t.Errorf("%+v", last)
	}
}

func TestNewRefusesAServerWithoutLimits(t *testing.T) {
	for name, c := range map[string]Config{"no Allow": {}, "capacity": {Allow: open, Capacity: maxCapacity + 1}, "negative": {Allow: open, Capacity: -1}, "rest": {Allow: open, Rest: -1}} {
		if s, err := New(c); err == nil || s != nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzMessage(f *testing.F) {
	s := newServer(f, Config{Capacity: 256, Rest: time.Nanosecond})
	for _, name := range []string{".", "a.test.", "LocalHost.", "1.0.18.198.in-addr.arpa.", strings.Repeat("a.", 125) + "aaa."} {
		f.Add(question(f, name, dnsmessage.TypeA, true))
		f.Add(question(f, name, dnsmessage.TypePTR, false))
	}
	f.Add([]byte{0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, msg []byte) {
		reply, limited := s.answer(nil, msg)
		if limited {
			t.Fatal("limited without a limit")
		}
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("the reply does not parse: %v", err)
		}
		if len(reply) > 512 || !m.Response || m.Truncated || m.ID != uint16(msg[0])<<8|uint16(msg[1]) || len(m.Answers) > 1 || len(m.Questions) > 1 || len(m.Authorities) > 0 {
			t.Fatalf("%d bytes: %+v", len(reply), m)
		}
		for _, a := range m.Answers {
			switch b := a.Body.(type) {
			case *dnsmessage.AResource:
				if a := netip.AddrFrom4(b.A); !a.IsLoopback() && !netip.MustParsePrefix("198.18.0.0/15").Contains(a) {
					t.Fatalf("answered %v", a)
				}
			case *dnsmessage.AAAAResource:
				if a := netip.AddrFrom16(b.AAAA); !a.IsLoopback() && !netip.MustParsePrefix("fd00::/8").Contains(a) {
					t.Fatalf("answered %v", a)
				}
			case *dnsmessage.PTRResource:
			default:
				t.Fatalf("answered with type %v", a.Header.Type)
			}
		}
		if again, _ := s.answer(nil, msg); !bytes.Equal(again, reply) {
			t.Fatal("the same query was answered differently")
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	s := newServer(b, Config{})
	msg := question(b, "api.example.com.", dnsmessage.TypeA, true)
	out := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		s.answer(out, msg)
	}
}
