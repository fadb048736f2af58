package dns

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"postern/internal/core/gate"
)

const (
	headerSize    = 12
	ttl           = 60       // seconds
	udpPayload    = 1232     // bytes; what we say in OPT: fits any path
	versionBits   = 0xff0000 // of an OPT's TTL
	dnssecOKBit   = 1 << 15
	codeBadVers   = dnsmessage.RCode(16)
	codeNXDomain  = dnsmessage.RCodeNameError
	codeNoError   = dnsmessage.RCodeSuccess
	codeFormErr   = dnsmessage.RCodeFormatError
	canaryForDoH  = "use-application-dns.net" // NXDOMAIN tells browsers to leave names to this server
	nat64Presence = "ipv4only.arpa"           // RFC 7050: an AAAA would announce NAT64
)

// query is a message that was understood.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	asked    bool // question is set
	edns     bool
	dnssecOK bool
}

// result is what is answered. At most one of addr and name is set.
type result struct {
	code dnsmessage.RCode
	addr netip.Addr
	name gate.Host
}

// answer appends the reply to one message to out, or returns nil when there is none. limited says that the query was beyond the rate.
func (s *Server) answer(out, msg []byte) (reply []byte, limited bool) {
	q, code, ok := parse(msg)
	if !ok {
		return nil, false
	}
	r := result{code: code}
	if code == codeNoError {
		r, limited = s.resolve(&q)
	}
	reply, err := pack(out, &q, r)
	if err != nil {
		return nil, limited
	}
	return reply, limited
}

// parse reads a query. A code other than NOERROR is the answer; !ok means that there is none.
func parse(msg []byte) (q query, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	if len(msg) < headerSize {
		return q, 0, false
	}
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return q, 0, false
	}
	q.header = h
	questions, records := int(msg[4])<<8|int(msg[5]), msg[6]|msg[7]|msg[8]|msg[9] // answers and authorities: none in a query
	switch {
	case h.OpCode != 0:
		return q, dnsmessage.RCodeNotImplemented, true
	case questions != 1 || records != 0:
		return q, codeFormErr, true
	}
	if q.question, err = p.Question(); err != nil {
		return q, codeFormErr, true
	}
	q.asked = true
	if err := errors.Join(p.SkipAllQuestions(), p.SkipAllAnswers(), p.SkipAllAuthorities()); err != nil {
		return q, codeFormErr, true
	}
	return q, q.readOPT(&p), true
}

// readOPT looks for EDNS among the additional records. Their number is bounded by the size of the message.
func (q *query) readOPT(p *dnsmessage.Parser) dnsmessage.RCode {
	code := codeNoError
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return code
		}
		if err != nil || h.Type == dnsmessage.TypeOPT && (q.edns || h.Name.Length != 1) {
			return codeFormErr
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.dnssecOK = true, h.TTL&dnssecOKBit != 0
			if h.TTL&versionBits != 0 {
				code = codeBadVers
			}
		}
		if p.SkipAdditional() != nil {
			return codeFormErr
		}
	}
}

// resolve answers a question and reports it.
func (s *Server) resolve(q *query) (r result, limited bool) {
	name := strings.TrimSuffix(q.question.Name.String(), ".")
	seen := Query{Name: name, Type: uint16(q.question.Type)}
	defer func() { seen.Answer = r.addr; s.observe(seen) }()
	if q.question.Class != dnsmessage.ClassINET {
		return result{code: dnsmessage.RCodeRefused}, false
	}
	if why := s.allow(s.now()); why != gate.ReasonNone {
		seen.Reason = why
		return result{code: dnsmessage.RCodeRefused}, true
	}
	if name == "" {
		return result{}, false // the root exists and has nothing for a sandbox
	}
	host, err := gate.ParseHost(name)
	if err != nil {
		seen.Reason = gate.ReasonMalformedHost
		if bad := (*gate.ParseError)(nil); errors.As(err, &bad) {
			seen.Reason = bad.Reason
		}
		return result{code: codeNXDomain}, false
	}
	seen.Host = host
	r, full := s.lookup(host, q.question.Type)
	if full {
		seen.Reason = gate.ReasonLimitDNS
	}
	return r, false
}

// lookup is the answer for a well-formed name. full says that there was no address left for it.
func (s *Server) lookup(host gate.Host, typ dnsmessage.Type) (r result, full bool) {
	name := host.String()
	four, six := typ == dnsmessage.TypeA, typ == dnsmessage.TypeAAAA
	switch {
	case name == canaryForDoH:
		return result{code: codeNXDomain}, false
	case name == nat64Presence:
		return result{}, false
	case strings.HasSuffix(name, ".in-addr.arpa"), strings.HasSuffix(name, ".ip6.arpa"):
		return s.reverse(name, typ), false
	case !four && !six:
		return result{}, false
	case name == "localhost" || strings.HasSuffix(name, ".localhost"): // RFC 6761 §6.3
		if four {
			return result{addr: netip.AddrFrom4([4]byte{127, 0, 0, 1})}, false
		}
		return result{addr: netip.IPv6Loopback()}, false
	}
	v4, v6, ok := s.names.Assign(host)
	switch {
	case !ok:
		return result{code: dnsmessage.RCodeRefused}, true
	case four:
		return result{addr: v4}, false
	}
	return result{addr: v6}, false
}

// reverse answers questions about addresses. Names below the reverse trees never get an address themselves.
func (s *Server) reverse(name string, typ dnsmessage.Type) result {
	if typ != dnsmessage.TypePTR {
		return result{}
	}
	addr, ok := parseReverse(name)
	if !ok {
		return result{code: codeNXDomain}
	}
	if addr.IsLoopback() {
		host, _ := gate.ParseHost("localhost")
		return result{name: host}
	}
	if host, ok := s.names.Lookup(addr); ok {
		return result{name: host}
	}
	return result{code: codeNXDomain}
}

// parseReverse reads the address out of a lower-case name below in-addr.arpa (RFC 1035 §3.5) or ip6.arpa (RFC 3596 §2.5).
func parseReverse(name string) (netip.Addr, bool) {
	if digits, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		part := strings.Split(digits, ".")
		if len(part) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(part[3] + "." + part[2] + "." + part[1] + "." + part[0])
		return a, err == nil
	}
	digits, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(digits) != 63 {
		return netip.Addr{}, false
	}
	var a [16]byte
	for i := range 32 {
		c := digits[62-2*i]
		n := strings.IndexByte("0123456789abcdef", c)
		if n < 0 || i > 0 && digits[63-2*i] != '.' {
			return netip.Addr{}, false
		}
		a[i/2] |= byte(n) << (4 * (1 - i%2))
	}
	return netip.AddrFrom16(a), true
}

// pack appends the reply to out. The question comes back byte for byte: resolvers randomise its case and compare (0x20).
func pack(out []byte, q *query, r result) ([]byte, error) {
	b := dnsmessage.NewBuilder(out, dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RCode: r.code & 0xf,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true, CheckingDisabled: q.header.CheckingDisabled,
	})
	b.EnableCompression()
	var errs [5]error
	if q.asked {
		errs[0] = errors.Join(b.StartQuestions(), b.Question(q.question))
	}
	h := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	switch {
	case r.addr.Is4():
		errs[1] = errors.Join(b.StartAnswers(), b.AResource(h, dnsmessage.AResource{A: r.addr.As4()}))
	case r.addr.Is6():
		errs[1] = errors.Join(b.StartAnswers(), b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: r.addr.As16()}))
	case !r.name.IsZero():
		target, err := dnsmessage.NewName(r.name.String() + ".")
		errs[1] = errors.Join(err, b.StartAnswers(), b.PTRResource(h, dnsmessage.PTRResource{PTR: target}))
	}
	if q.edns {
		var opt dnsmessage.ResourceHeader
		errs[2] = errors.Join(opt.SetEDNS0(udpPayload, r.code, q.dnssecOK), b.StartAdditionals(), b.OPTResource(opt, dnsmessage.OPTResource{}))
	}
	reply, err := b.Finish()
	errs[3] = err
	return reply, errors.Join(errs[:]...)
}
