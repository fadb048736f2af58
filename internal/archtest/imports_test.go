package archtest

import (
	"strings"
	"testing"
)

// A layer says what packages below one directory may import of this module, and why nothing else.
type layer struct {
	dir    string
	may    []string
	reason string
}

// layers is the import table of ARCHITECTURE.md. The first row whose directory holds the package decides.
func layers() []layer {
	core := []string{"internal/core"}
	return []layer{
		{"internal/core/gate", nil, "gate is the vocabulary at the bottom of the house"},
		{"internal/core/secret", []string{"internal/core/gate"}, "secret is at the bottom of the house: what it knows, everything knows"},
		{"internal/core/limit", []string{"internal/core/gate"}, "limit stands on gate alone"},
		{"internal/core/git", []string{"internal/core/gate"}, "git reads and writes a protocol; it decides nothing"},
		{"internal/core/record", []string{"internal/core/gate"}, "record is the schema of the audit log, not what fills it"},
		{"internal/core/policy", []string{"internal/core/gate", "internal/core/git"}, "a decision depends on the action and the rules and on nothing else"},
		{"internal/core", core, "core is pure and stands on itself"},
		{"internal/hostile", core, "what parses the sandbox's bytes must not be able to name a secret or a socket to the world"},
		{"internal/trusted", core, "what holds a secret must not be able to parse what the sandbox wrote"},
		{"internal/sandbox", core, "the runner starts untrusted code; it knows neither secrets nor parsers"},
		{"internal/operator", core, "the operator's side turns files into core types; the wiring is daemon's"},
		{"internal/daemon", []string{"internal"}, ""},
		{"cmd", []string{"internal"}, ""},
		{"internal/testkit", []string{"internal/core"}, "the kit tests the binary from outside; what it shared with the product it could not test"},
		{"internal/e2e", []string{"internal/core", "internal/testkit"}, "an end-to-end test sees the product as a user does"},
		{"internal/archtest", core, "archtest reads source and needs none of it linked, but for the zero values of core"},
		{"examples", nil, "an example is what a user could write"},
	}
}

// siblings are the packages that may import one another within their layer: a package and what stands below it.
func sibling(from, to string) bool {
	parts := strings.Split(from, "/")
	if len(parts) < 2 {
		return false
	}
	switch parts[1] {
	case "core":
		return false
	case "sandbox", "operator", "testkit", "daemon":
		return in(to, strings.Join(parts[:2], "/"))
	}
	return len(parts) >= 3 && in(to, strings.Join(parts[:3], "/"))
}

func TestImportsPointDown(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		l := layerOf(p.dir)
		if l == nil {
			t.Errorf("%s: no layer of ARCHITECTURE.md holds this package; place it, or add the layer there and here", p.path)
			continue
		}
		for _, f := range p.files {
			for _, path := range imports(f) {
				to, own := strings.CutPrefix(path, module+"/")
				if !own || to == p.dir || in(to, l.may...) || sibling(p.dir, to) {
					continue
				}
				t.Errorf("%s imports %s: %s", f.name, path, l.reason)
			}
		}
	}
}

func layerOf(dir string) *layer {
	for _, l := range layers() {
		if in(dir, l.dir) {
			return &l
		}
	}
	return nil
}

// confined lists packages of the standard library and of others that only named places may import, tests apart.
func TestConfinedImports(t *testing.T) {
	confined := []struct {
		path   string // an import path or, with a trailing slash, all below it
		places []string
		reason string
	}{
		{"unsafe", []string{"internal/testkit/probe", "internal/sandbox", "internal/hostile/capture", "internal/hostile/attest"}, "unsafe is for system calls that x/sys does not wrap, in the packages that make them"},
		{"C", nil, "no cgo: libc's resolver reads 127.1 as an address, and the binary must run anywhere"},
		{"os/exec", []string{"internal/sandbox", "internal/trusted/broker", "internal/daemon", "cmd/postern", "internal/testkit", "internal/e2e"}, "only the runner starts the sandbox and only the broker runs a credential command"},
		{"github.com/vishvananda/", []string{"internal/hostile/capture"}, "network configuration is capture's alone"},
		{"github.com/google/nftables", []string{"internal/hostile/capture"}, "network configuration is capture's alone"},
		{"github.com/google/nftables/", []string{"internal/hostile/capture"}, "network configuration is capture's alone"},
		{"github.com/mdlayher/", []string{"internal/hostile/capture"}, "network configuration is capture's alone"},
		{"github.com/spf13/", []string{"cmd/postern", "internal/daemon"}, "the command line is the outermost layer"},
		{"google.golang.org/", []string{"internal/testkit", "internal/e2e"}, "gRPC is a client of the product, not a part of it"},
		{"math/rand", []string{"internal/testkit", "internal/e2e"}, "identifiers, placeholders and serials must not be guessable"},
		{"math/rand/v2", []string{"internal/testkit", "internal/e2e"}, "identifiers, placeholders and serials must not be guessable"},
		{"net/http/pprof", nil, "a profile holds memory, and memory holds credentials"},
		{"expvar", nil, "it registers a handler on the default mux"},
		{"net/http/cgi", []string{"internal/testkit"}, "the gateway runs no programs for requests"},
		{"plugin", nil, "the product is one static binary"},
		{"text/template", nil, "templates reach fields by reflection"},
		{"encoding/gob", nil, "nothing here decodes types it did not declare"},
	}
	h := source(t)
	for _, p := range h.pkgs {
		for _, f := range p.files {
			for _, path := range imports(f) {
				for _, c := range confined {
					if path != c.path && !(strings.HasSuffix(c.path, "/") && strings.HasPrefix(path, c.path)) {
						continue
					}
					if !in(p.dir, c.places...) {
						t.Errorf("%s imports %s: %s", f.name, path, c.reason)
					}
				}
			}
		}
	}
}

func TestCoreIsPure(t *testing.T) {
	allowedNet := map[string]bool{"net/netip": true, "net/textproto": true, "net/url": true}
	impure := func(path string) string {
		switch {
		case path == "net" || strings.HasPrefix(path, "net/") && !allowedNet[path], strings.HasPrefix(path, "crypto/tls"), strings.HasPrefix(path, "golang.org/x/net/http"):
			return "core does no network IO: it judges and transforms what it is given"
		case path == "os" || strings.HasPrefix(path, "os/"), path == "syscall", strings.HasPrefix(path, "golang.org/x/sys"), path == "io/ioutil":
			return "core touches no operating system: no file, environment, signal or process"
		case strings.HasPrefix(path, "math/rand"), path == "crypto/rand":
			return "core makes no randomness: random bytes are an argument, so that every test can repeat itself"
		case path == "log", path == "log/slog", path == "context":
			return "core returns values; what waits, logs or is cancelled stands above it"
		case path == "sync", path == "sync/atomic":
			return "core has no concurrency of its own: its owner locks"
		case path == "unsafe":
			return "core needs no unsafe"
		case path == "reflect", path == "regexp":
			return "core decides by types and plain comparison"
		}
		return ""
	}
	h := source(t)
	for _, p := range h.pkgs {
		if !in(p.dir, "internal/core") {
			continue
		}
		for _, f := range p.files {
			for _, path := range imports(f) {
				if why := impure(path); why != "" && !coreException(p.dir, path) {
					t.Errorf("%s imports %s: %s", f.name, path, why)
				}
			}
		}
	}
}

// coreException names the impure imports that were argued for.
func coreException(dir, path string) bool {
	switch dir + " " + path {
	case "internal/core/secret log/slog": // LogValue is how slog is refused the bytes
		return true
	case "internal/core/secret sync": // a Value is wiped and read by different owners, and the redactor's buffers are pooled
		return true
	case "internal/core/limit sync", "internal/core/session sync": // counters and state that many goroutines share, still without a clock
		return true
	}
	return false
}
