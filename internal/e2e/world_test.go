package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

// world is the internet of one test, a house in it, and the secrets of the run.
type world struct {
	*testkit.Net
	*testkit.House
	forge    *testkit.Forge
	model    *testkit.Anthropic
	canaries *testkit.Canaries

	modelKey, forgeToken, echoKey testkit.Secret
}

// profile is what the sandbox may do in these tests.
const profile = `
use: [claude, npm, pypi, go, debian]
git:
  - repo: github.com/acme/widgets
    credential: github
    push: true
allow:
  - host: open.test
    websocket: true
  - host: echo.test
    websocket: true
    inject: {credential: echo, header: Authorization, format: "Bearer {}"}
  - host: readonly.test
    methods: [GET]
    paths: ["/public/**"]
  - {host: down.test}
  - {host: wrong-name.test, inject: {credential: echo, header: Authorization, format: "Bearer {}"}}
deny:
  - host: open.test
    paths: ["/forbidden/**"]
limits: {requests: 100000/s, handshakes: 10000/s, connections: 1024}
`

var hosts = struct{ npm, files, goproxy, deb string }{
	testkit.Registry("registry", "npmjs.org"), testkit.Registry("files", "pythonhosted.org"),
	testkit.Registry("proxy", "golang.org"), testkit.Registry("deb", "debian.org"),
}

// newWorld starts the servers and lays out a house for a user.
func newWorld(t *testing.T, u testkit.User) *world {
	t.Helper()
	w := &world{
		Net:        testkit.NewNet(t),
		modelKey:   testkit.NewSecret("claude", "sk-ant-api03-"),
		forgeToken: testkit.NewSecret("github", "ghp_"),
		echoKey:    testkit.NewSecret("echo", "ek_"),
	}
	w.model = &testkit.Anthropic{Key: w.modelKey.Value()}
	w.forge = testkit.NewForge(t, w.forgeToken.Value())
	w.forge.AddRepo("acme/widgets", map[string]string{"README.md": "# widgets\n", "src/a.txt": strings.Repeat("a\n", 1000)})
	w.forge.AddRepo("acme/secret-plans", map[string]string{"README.md": "# plans\n"})
	w.Serve("api.anthropic.com", w.model)
	w.Serve("github.com", w.forge)
	open := http.NewServeMux()
	open.Handle("/events", testkit.Events())
	open.Handle("/ws", testkit.WebSocketEcho())
	open.Handle("/bulk", testkit.Bulk())
	open.Handle("/postern.test.Echo/", testkit.GRPCEcho())
	open.Handle("/", testkit.Echo())
	w.Serve("open.test", open)
	echo := http.NewServeMux()
	echo.Handle("/ws", testkit.WebSocketEcho())
	echo.Handle("/events", testkit.Events())
	echo.Handle("/", testkit.Echo())
	w.Serve("echo.test", echo)
	w.Serve("readonly.test", testkit.Echo())
	w.Serve("evil.test", testkit.Echo()) // listening, under upstreams:, and in no rule
	w.ServeWith("wrong-name.test", testkit.Echo(), func(s *http.Server) {
		s.TLSConfig.Certificates[0] = w.CA.Leaf(t, nil, "other.test")
	})
	w.Serve(hosts.npm, testkit.NPM(t, hosts.npm))
	w.Serve("pypi.org", testkit.PyPIIndex(t, hosts.files))
	w.Serve(hosts.files, testkit.PyPIFiles(t))
	w.Serve(hosts.goproxy, testkit.GoProxy(t))
	w.Serve(hosts.deb, testkit.Apt(t))
	w.House = w.NewHouse(t, testkit.Config{
		User: u, Profile: profile,
		Credentials: []testkit.Credential{{Secret: w.modelKey}, {Secret: w.forgeToken}, {Secret: w.echoKey}},
		Files:       map[string]string{"hello.txt": "hello\n"},
	})
	w.canaries = testkit.NewCanaries(t, w.modelKey, w.forgeToken, w.echoKey)
	return w
}

// everyUser runs a test in a world of its own for each user who may run postern.
func everyUser(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, u := range testkit.Users() {
		t.Run(u.Name, func(t *testing.T) { test(t, newWorld(t, u)) })
	}
}

// ok fails the test when a command in the sandbox did.
func ok(t *testing.T, r testkit.Result) testkit.Result {
	t.Helper()
	if r.Exit != 0 {
		t.Fatalf("exit %d\nstdout: %s\nstderr: %s", r.Exit, r.Stdout, r.Stderr)
	}
	return r
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
