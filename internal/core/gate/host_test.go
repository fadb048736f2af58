package gate_test

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

// reason is the code that a parse error carries.
func reason(t *testing.T, err error) gate.Reason {
	t.Helper()
	var p *gate.ParseError
	if !errors.As(err, &p) {
		t.Fatalf("%v is no ParseError", err)
	}
	if p.Reason == gate.ReasonNone || p.Detail == "" || p.What == "" {
		t.Errorf("%+v does not say what is wrong", p)
	}
	return p.Reason
}

func TestParseHostAcceptsOneSpelling(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 61)+".", 4) + "test"
	for in, want := range map[string]string{
		"a.test": "a.test", "A.TEST": "a.test", "a.Test": "a.test", "localhost": "localhost", "_acme.a.test": "_acme.a.test", "a-b--c.test": "a-b--c.test",
		"1.a.test": "1.a.test", "1.2.3.4.test": "1.2.3.4.test", "0x7f.test": "0x7f.test", "a.1x": "a.1x", "a.0xg": "a.0xg", "7.a7": "7.a7",
		"xn--bcher-kva.test": "xn--bcher-kva.test", "XN--BCHER-KVA.test": "xn--bcher-kva.test", "xn--fiqs8s": "xn--fiqs8s",
		strings.Repeat("a", 63) + ".test": strings.Repeat("a", 63) + ".test", long: long,
	} {
		h, err := gate.ParseHost(in)
		if err != nil || h.String() != want || h.IsZero() {
			t.Errorf("%q: %q, %v; want %q", in, h, err, want)
		}
		if upper, err := gate.ParseHost(strings.ToUpper(in)); err != nil || upper != h {
			t.Errorf("%q in upper case is another host: %q, %v", in, upper, err)
		}
	}
}

func TestParseHostRefuses(t *testing.T) {
	malformed := []string{
		// dots (A14)
		"", ".", "..", "a.test.", ".a.test", "a..test", "a.test..", "..a.test", "a.test.\x00", "a。test", "a．test", "a｡test",
		// brackets, ports, zones (A15)
		"[a.test]", "[[a.test]]", "[::1]", "::1", "[::ffff:1.2.3.4%x.a.test]", "fe80::1%eth0", "a.test:443", "[", "]",
		// control bytes, spaces, percent (A16)
		"a.test\x00", "\x00a.test", "a.test\x00.evil.test", "a.test\r\n", "a.test\n", "a.test\t", "a test", " a.test", "a.test ", "a.test%00", "a%2etest", "a.test\x7f", "a\u00adb.test", "a\u200bb.test",
		// userinfo and delimiters (A17)
		"a.test@evil.test", "user:pass@a.test", "a.test#@evil.test", `a.test\@evil.test`, "a.test/evil.test", "a.test?evil.test", "a.test;evil.test", "a.test&evil.test", "a.test,evil.test",
		"https://a.test", "//a.test", "a.test|evil.test", "a.test`evil", "a.test'", `a.test"`, "a.test<", "{a}.test", "*.a.test", "*", "a.test=", "a+b.test", "~a.test", "(a.test)", "!a.test", "$a.test", "^a.test",
		// labels
		"-a.test", "a-.test", "a.-test", "a.test-", strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 127) + "aa",
		// other scripts and false A-labels
		"bücher.test", "аpple.test", "ａ.test", "xn--.test", "xn--a.test", "xn--a-.test", "xn--zzzzzzzzzzzzz99999.test", "xn--A.test", "a\xff.test", "a\x80.test", "xn--www-.test",
	}
	for _, s := range malformed {
		h, err := gate.ParseHost(s)
		if err == nil || !h.IsZero() {
			t.Errorf("%q is accepted as %q", s, h)
		} else if r := reason(t, err); r != gate.ReasonMalformedHost {
			t.Errorf("%q: reason %s", s, r)
		}
	}
	// Numbers that a resolver reads as an address (F11).
	for _, s := range []string{
		"127.0.0.1", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0x7F.0x0.0x0.0x1", "0X7F.1", "0177.0.0.1", "0177.1", "1.2.3.4", "1.2.3.4.5", "256.256.256.256", "0", "00", "1",
		"a.1", "a.test.0", "a.test.0x1", "a.0x", "0x", "a.007", "99999999999999999999", "1.2.3.08", "169.254.169.254", "0.0.0.0", "255.255.255.255", "a.0xdeadbeef", "A.0XDEADBEEF",
	} {
		h, err := gate.ParseHost(s)
		if err == nil || !h.IsZero() {
			t.Errorf("%q is accepted as %q", s, h)
		} else if r := reason(t, err); r != gate.ReasonHostIsAddress {
			t.Errorf("%q: reason %s", s, r)
		}
	}
}

func TestParent(t *testing.T) {
	h, err := gate.ParseHost("a.b.test")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for ; !h.IsZero(); h = h.Parent() {
		names = append(names, h.String())
	}
	if got := strings.Join(names, " "); got != "a.b.test b.test test" {
		t.Errorf("got %s", got)
	}
	if !(gate.Host{}).Parent().IsZero() {
		t.Error("the zero host has a parent")
	}
}

func TestParsePort(t *testing.T) {
	for n := range 70_000 {
		p, err := gate.ParsePort(strconv.Itoa(n))
		if want := n >= 1 && n <= 65535; (err == nil) != want || want && (int(p) != n || p.String() != strconv.Itoa(n)) || !want && p != 0 {
			t.Fatalf("%d: %v, %v", n, p, err)
		}
	}
	for _, s := range []string{"", "0", "00", "01", "0443", "+443", "-1", " 443", "443 ", "443\n", "http", "https", "0x1bb", "1e3", "4_4", "65536", "99999", "100000", "4294967739", "18446744073709552059", "４４３", "443/tcp", "443:"} {
		if p, err := gate.ParsePort(s); err == nil || p != 0 {
			t.Errorf("%q is accepted as %v", s, p)
		} else if r := reason(t, err); r != gate.ReasonMalformedAuthority {
			t.Errorf("%q: reason %s", s, r)
		}
	}
}

func TestParseAuthority(t *testing.T) {
	for in, want := range map[string]string{"a.test": "a.test:443", "A.test:8443": "a.test:8443", "a.test:443": "a.test:443", "a.test:80": "a.test:80"} {
		a, err := gate.ParseAuthority(in, 443)
		if err != nil || a.String() != want {
			t.Errorf("%q: %q, %v", in, a, err)
		}
	}
	for _, s := range []string{
		"", ":", ":443", "a.test:", "a.test:0", "a.test:65536", "a.test:http", "a.test:443:443", "a.test::443", "[a.test]:443", "[::1]:443", "::1", "1.2.3.4:443", "1.2.3.4",
		"user@a.test:443", "user:pass@a.test", "a.test:443@evil.test", "a.test:443/", "a.test.:443", ".a.test:443", "a.test:443 ", "a.test :443", "a.test:+443", "a.test:0443", "a.test:443\x00", "2130706433:443", "a.test#:443", `a.test\:443`,
	} {
		if a, err := gate.ParseAuthority(s, 443); err == nil || a != (gate.Authority{}) {
			t.Errorf("%q is accepted as %v", s, a)
		} else {
			reason(t, err)
		}
	}
}

// checkHost holds what must be true of everything that ParseHost accepts.
func checkHost(t interface{ Fatalf(string, ...any) }, in string, h gate.Host) {
	name := h.String()
	if again, err := gate.ParseHost(name); err != nil || again != h {
		t.Fatalf("%q prints as %q, which parses as %q, %v", in, name, again, err)
	}
	if !strings.EqualFold(in, name) {
		t.Fatalf("%q became %q", in, name)
	}
	if name != strings.ToLower(name) || len(name) > gate.MaxHost || strings.HasSuffix(name, ".") {
		t.Fatalf("%q is not canonical", name)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		t.Fatalf("%q is an address", name)
	}
	u, err := url.Parse("https://" + name + "/")
	if err != nil || u.Host != name || u.Hostname() != name || u.User != nil || u.Path != "/" {
		t.Fatalf("net/url reads %q as %+v, %v", name, u, err)
	}
	if host, port, err := net.SplitHostPort(name + ":443"); err != nil || host != name || port != "443" {
		t.Fatalf("net splits %q into %q and %q, %v", name, host, port, err)
	}
}

func TestEveryAcceptedHostIsCanonical(t *testing.T) {
	label := rapid.StringMatching(`[a-zA-Z0-9_]{1,8}(-[a-z0-9]{1,4})?`)
	rapid.Check(t, func(t *rapid.T) {
		in := strings.Join(rapid.SliceOfN(label, 1, 5).Draw(t, "labels"), rapid.SampledFrom([]string{".", ".", ".", "..", ":", "@"}).Draw(t, "dot"))
		if h, err := gate.ParseHost(in); err == nil {
			checkHost(t, in, h)
		}
	})
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"a.test", "A.TEST.", "xn--bcher-kva.test", "xn--", "0x7f.1", "127.1", "[::1]", "a@b", "a\x00b", "_x.y", "a.1x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := gate.ParseHost(s)
		if err != nil {
			if !h.IsZero() {
				t.Fatalf("an error and %q", h)
			}
			reason(t, err)
			return
		}
		checkHost(t, s, h)
	})
}

func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{"a.test", "a.test:443", "a.test:0", "[::1]:443", "u@a.test:1", "a:b:1", ":1", "a.test:65536"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := gate.ParseAuthority(s, 443)
		if err != nil {
			if a != (gate.Authority{}) {
				t.Fatalf("an error and %v", a)
			}
			return
		}
		if a.Port == 0 || a.Host.IsZero() {
			t.Fatalf("%q has no host or port: %v", s, a)
		}
		if again, err := gate.ParseAuthority(a.String(), 1); err != nil || again != a {
			t.Fatalf("%q prints as %v, which parses as %v, %v", s, a, again, err)
		}
		checkHost(t, a.Host.String(), a.Host)
	})
}
