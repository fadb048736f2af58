package inspect

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// file writes a file of a fake /proc or a fake host and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// authority is a self-signed certificate with its key: both the session's root and a server's leaf.
func authority(t *testing.T, host string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func pemOf(c tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}

// web serves one answer to everything, over TLS when there is a certificate.
func web(t *testing.T, status int, reason string, cert *tls.Certificate) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if reason != "" {
			w.Header().Set(reasonHeader, reason)
		}
		w.WriteHeader(status)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that refuse the certificate are the point
	if cert != nil {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// nameServer answers every question with one address.
func nameServer(t *testing.T, addr [4]byte) question {
	t.Helper()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { p.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			m.Response = true
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{A: addr}}}
			if answer, err := m.Pack(); err == nil {
				_, _ = p.WriteTo(answer, from)
			}
		}
	}()
	return question{network: "udp", server: p.LocalAddr().String()}
}

// udpEcho answers what it is sent.
func udpEcho(t *testing.T) string {
	t.Helper()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { p.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(b[:n], from)
		}
	}()
	return p.LocalAddr().String()
}

// closedPort is a port of loopback that nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func ownNamespaces(t *testing.T, kind string) Result {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return ownNamespace(kind, own)
}

// weakened has, for each check, a place where what it looks for is missing.
func weakened(t *testing.T) map[string]func(t *testing.T) Result {
	ctx := context.Background()
	const host = "nowhere.invalid"
	cert, other := authority(t, host), authority(t, host)
	plan := &Plan{Host: host, CA: pemOf(cert), Synthetic: []string{"198.18.0.0/15"}}
	list := map[string]func(t *testing.T) Result{
		"namespaces.nested": func(t *testing.T) Result {
			return noMoreNamespaces(filepath.Dir(file(t, "max_net_namespaces", "10\n")))
		},
		"namespaces.processes": func(t *testing.T) Result {
			w, err := ReadWitness("/proc/self")
			if err != nil {
				t.Fatal(err)
			}
			return noWitness("/proc", w)
		},
		"network.links": func(*testing.T) Result {
			return judgeLinks([]net.Interface{{Name: "lo", Flags: net.FlagLoopback}, {Name: "eth0", Flags: net.FlagUp}})
		},
		"network.routes": func(t *testing.T) Result {
			return noRouteOut(file(t, "route", "Iface\tDestination\neth0\t00000000\n"), file(t, "ipv6_route", ""))
		},
		"network.tcp4":  func(t *testing.T) Result { return answeredByGateway(ctx, plan, web(t, 403, "host.not_listed", &other)) },
		"network.tcp6":  func(t *testing.T) Result { return answeredByGateway(ctx, plan, web(t, 403, "", &cert)) },
		"network.ports": func(*testing.T) Result { return everyPort(ctx, "127.0.0.1:99999") },
		"network.udp":   func(t *testing.T) Result { return udpRefused(ctx, udpEcho(t)) },
		"network.icmp": func(*testing.T) Result {
			return pingSilent("127.0.0.1", func(int) (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
		},
		"network.dns": func(t *testing.T) Result {
			return everyNameServer(ctx, plan, []question{nameServer(t, [4]byte{93, 184, 216, 34})})
		},
		"network.metadata": func(t *testing.T) Result {
			return metadataRefused(ctx, &Plan{Metadata: []string{web(t, 403, "host.is_address", nil), web(t, 200, "", nil)}})
		},
		"calls.families":          func(*testing.T) Result { return allRefused(otherFamilies()) },
		"calls.netlink":           func(*testing.T) Result { return allRefused(otherNetlink()) },
		"calls.foreign":           func(*testing.T) Result { return foreignKilled(ctx, nil) },
		"privileges.capabilities": func(t *testing.T) Result { return noCapabilities(file(t, "status", capabilities("0000000000000400"))) },
		"privileges.no_new_privs": func(t *testing.T) Result { return statusIs(file(t, "status", "NoNewPrivs:\t0\n"), "NoNewPrivs", "1") },
		"privileges.seccomp":      func(t *testing.T) Result { return statusIs(file(t, "status", "Seccomp:\t0\n"), "Seccomp", "2") },
		"privileges.uid": func(t *testing.T) Result {
			return notRoot(1000, file(t, "uid_map", "      1000          0          1\n"))
		},
		"privileges.mapping": func(t *testing.T) Result {
			return oneMapping(map[string]int{file(t, "uid_map", "0 0 4294967295\n"): 0})
		},
		"privileges.init":           func(*testing.T) Result { return closedProcess("/proc/self") },
		"privileges.setid":          func(t *testing.T) Result { return noSetID(t.TempDir()) },
		"privileges.landlock":       func(t *testing.T) Result { return landlockWrites(t.TempDir(), 7) },
		"privileges.landlock_scope": func(t *testing.T) Result { return landlockScope(7, landlockWrites(t.TempDir(), 7)) },
		"process.descriptors": func(t *testing.T) Result {
			fd, err := unix.Open("/etc", unix.O_RDONLY, 0) // survives an exec
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			return onlyStdio()
		},
		"process.environment": func(*testing.T) Result { return onlyDeclared([]string{"PATH=/bin", "LD_PRELOAD=x"}, []string{"PATH"}) },
		"process.credentials": func(*testing.T) Result { return noCredential([]string{"HARMLESS=ghp_" + strings.Repeat("x", 36)}, nil) },
		"process.core":        func(*testing.T) Result { return noCore(unix.Rlimit{Cur: 0, Max: math.MaxUint64}) },
		"process.rlimits":     func(*testing.T) Result { return finite(unix.Rlimit{Cur: 100, Max: math.MaxUint64}) },
		"files.root":          func(*testing.T) Result { return ownRoot("/proc") },
		"files.system":        func(t *testing.T) Result { return readOnly(t.TempDir()) },
		"files.propagation": func(t *testing.T) Result {
			return privateMounts(file(t, "mountinfo", "36 35 98:0 / /mnt rw shared:1 - ext4 /dev/x rw\n"))
		},
		"files.home": func(t *testing.T) Result {
			return onlyDeclaredBelow([]string{"/elsewhere"}, filepath.Dir(file(t, ".netrc", "")))
		},
		"files.scratch": func(t *testing.T) Result { return onlyDeclaredBelow(nil, "/nowhere", filepath.Dir(file(t, "x", ""))) },
		"files.credentials": func(t *testing.T) Result {
			return noneReadable(credentialPaths(&Plan{Absent: []string{file(t, "marker", "")}}), nil)
		},
		"files.system_secrets": func(t *testing.T) Result { return noneReadable([]string{file(t, "shadow", "")}, nil) },
		"files.sockets":        func(t *testing.T) Result { return noSocket(ctx, []string{unixServer(t)}) },
		"files.policy":         func(t *testing.T) Result { return noneWritable([]string{file(t, "postern.yaml", "")}) },
		"files.proc":           func(t *testing.T) Result { return tameProc(filepath.Dir(filepath.Dir(file(t, "sys/x", "")))) },
		"files.sys":            func(t *testing.T) Result { return emptyOrAbsent(filepath.Dir(file(t, "x", ""))) },
		"files.devices":        func(t *testing.T) Result { return harmlessDevices(filepath.Dir(file(t, "mem", ""))) },
		"trust.store": func(t *testing.T) Result {
			return bundlesHold(plan, []string{file(t, "bundle", pemOf(cert)), file(t, "b", pemOf(other))})
		},
		"trust.verify": func(t *testing.T) Result { return verifies(ctx, plan, web(t, 403, "host.not_listed", &cert)) },
		"trust.variables": func(t *testing.T) Result {
			return variablesHold(plan, func(string) string { return "" }, func(name string) bool { return name == "node" })
		},
	}
	for _, k := range namespaceKinds() {
		list["namespaces."+k[0]] = func(t *testing.T) Result { return ownNamespaces(t, k[0]) }
	}
	for _, a := range attempts() {
		list[a.id] = func(*testing.T) Result { return refused(a) }
	}
	return list
}

func capabilities(bounding string) string {
	const none = "0000000000000000"
	return "CapInh:\t" + none + "\nCapPrm:\t" + none + "\nCapEff:\t" + none + "\nCapBnd:\t" + bounding + "\nCapAmb:\t" + none + "\n"
}

func unixServer(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return name
}

func TestEveryCheckCanSayNotHeld(t *testing.T) {
	list := weakened(t)
	for _, c := range Checks() {
		weak, ok := list[c.ID]
		if !ok {
			t.Errorf("%s: nothing shows that it can fail", c.ID)
			continue
		}
		delete(list, c.ID)
		t.Run(c.ID, func(t *testing.T) {
			if r := weak(t); r.Status != NotHeld {
				t.Errorf("%s: %s", r.Status, r.Evidence)
			} else if r.Evidence == "" {
				t.Error("it does not say what was seen")
			}
		})
	}
	for id := range list {
		t.Errorf("%s is no check", id)
	}
}

// The other arm: the same functions where the wall stands. What needs a real sandbox is seen by the tests of package daemon.
func TestChecksSayHeldWhereTheWallStands(t *testing.T) {
	ctx := context.Background()
	const host = "nowhere.invalid"
	cert := authority(t, host)
	plan := &Plan{Host: host, CA: pemOf(cert), Synthetic: []string{"198.18.0.0/15"}}
	bundle := file(t, "bundle", "# roots\n"+pemOf(authority(t, "x"))+pemOf(cert))
	for name, r := range map[string]Result{
		"namespace": ownNamespace("net", "net:[1]"),
		"nested":    noMoreNamespaces(filepath.Dir(file(t, "max_net_namespaces", "0\n"))),
		"processes": noWitness("/proc", Witness{Start: "1", Comm: "nobody"}),
		"links":     judgeLinks([]net.Interface{{Name: "lo", Flags: net.FlagLoopback}}),
		"routes":    noRouteOut(file(t, "route", "Iface\tDestination\n"), "/nowhere"),
		"tcp":       answeredByGateway(ctx, plan, web(t, 403, "host.not_listed", &cert)),
		"udp":       udpRefused(ctx, closedPort(t)),
		"icmp":      pingSilent("203.0.113.7", func(int) (int, error) { return -1, unix.EPROTONOSUPPORT }),
		"dns":       everyNameServer(ctx, plan, []question{nameServer(t, [4]byte{198, 19, 1, 1})}),
		"metadata":  metadataRefused(ctx, &Plan{Metadata: []string{web(t, 403, "host.is_address", nil)}}),
		"caps":      noCapabilities(file(t, "status", capabilities("0000000000000000"))),
		"uid":       notRoot(1000, file(t, "uid_map", "1000 1000 1\n")),
		"mapping":   oneMapping(map[string]int{file(t, "uid_map", "1000 1000 1\n"): 1000}),
		"mounts":    privateMounts(file(t, "mountinfo", "36 35 98:0 / /mnt rw - ext4 /dev/x rw\n")),
		"declared":  onlyDeclared([]string{"PATH=/bin"}, []string{"PATH"}),
		"sockets":   noSocket(ctx, []string{"/nowhere"}),
		"store":     bundlesHold(plan, []string{"/nowhere", bundle}),
		"variables": variablesHold(plan, func(name string) string {
			return map[string]string{"SSL_CERT_FILE": bundle, "JAVA_TOOL_OPTIONS": "-X -Djavax.net.ssl.trustStore=" + bundle}[name]
		}, func(string) bool { return false }),
	} {
		if r.Status != Held {
			t.Errorf("%s: %s: %s", name, r.Status, r.Evidence)
		}
	}
}

func TestWhatTheMachineLacksIsNotAvailable(t *testing.T) {
	for name, r := range map[string]Result{
		"ports":          everyPort(context.Background(), closedPort(t)),
		"landlock":       landlockWrites("/", 0),
		"landlock scope": landlockScope(5, Result{}),
		"variables":      variablesHold(&Plan{CA: pemOf(authority(t, "x"))}, func(string) string { return "" }, func(string) bool { return false }),
	} {
		if r.Status != Unavailable {
			t.Errorf("%s: %s: %s", name, r.Status, r.Evidence)
		}
	}
}

func TestCredentialsAreToldByNameAndShape(t *testing.T) {
	long := strings.Repeat("0123456789", 4)
	for kv, want := range map[string]Status{
		"GITHUB_TOKEN=" + long: NotHeld, "OPENAI_API_KEY=" + long: NotHeld, "DB_PASSWORD=a": NotHeld, "AWS_SECRET_ACCESS_KEY=" + long: NotHeld, "NPM_CONFIG__AUTH=" + long: NotHeld,
		"EDITOR=sk-" + long: NotHeld, "X=-----BEGIN " + long: NotHeld,
		"PLACEHOLDER_API_KEY=sk-" + long: Held, "GITHUB_TOKEN=": Held, "PATH=/usr/bin": Held, "AWS_SHARED_CREDENTIALS_FILE=/x": Held, "SSL_CERT_FILE=/etc/ssl": Held,
		"COLORTERM=truecolor": Held, "GIT_TERMINAL_PROMPT=0": Held, "KEYBOARD=us": Held, "TOKENIZERS_PARALLELISM=false": Held, "SECRET_STORE=none": Held, "X=sk-": Held,
	} {
		if r := noCredential([]string{kv}, []string{"PLACEHOLDER_API_KEY"}); r.Status != want {
			name, _, _ := strings.Cut(kv, "=")
			t.Errorf("%s: %s", name, r.Status)
		}
	}
}

func TestDeclaredPathsAreFollowedDown(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{".claude/settings.json", ".cargo/bin/cargo", ".cargo/credentials"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	declared := []string{filepath.Join(home, ".claude/settings.json"), filepath.Join(home, ".cargo/bin")}
	if r := onlyDeclaredBelow(declared, home); r.Status != NotHeld || r.Evidence != filepath.Join(home, ".cargo/credentials") {
		t.Errorf("%s: %s", r.Status, r.Evidence)
	}
	if r := onlyDeclaredBelow(append(declared, filepath.Join(home, ".cargo")), home); r.Status != Held {
		t.Errorf("%s: %s", r.Status, r.Evidence)
	}
	if r := onlyDeclaredBelow([]string{filepath.Dir(home)}, home); r.Status != Held {
		t.Errorf("a home below a declared mount: %s: %s", r.Status, r.Evidence)
	}
}

// Whatever the targets are, every attempt that can arrive does, and says which it is.
func TestKnocksArrive(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	targets := []Target{{"tcp", closedPort(t)}, {"tcp", l.Addr().String()}, {"udp", p.LocalAddr().String()}, {"unix", "/nowhere"}, {"no such network", "x"}}
	if n := Knock(context.Background(), targets, "abc"); n != len(targets) {
		t.Errorf("%d attempts at %d targets", n, len(targets))
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 64)
	if n, _ := c.Read(b); string(b[:n]) != Message("abc", 1) {
		t.Errorf("TCP heard %q", b[:n])
	}
	if n, _, err := p.ReadFrom(b); err != nil || string(b[:n]) != Message("abc", 2) {
		t.Errorf("UDP heard %q: %v", b[:n], err)
	}
}

func FuzzKernelText(f *testing.F) {
	f.Add("1000 1000 1\n", "1 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20")
	f.Add("", "1 (")
	f.Add("0 0 4294967295\n1 1", ")(")
	f.Fuzz(func(t *testing.T, idMap, stat string) {
		dir := t.TempDir()
		for name, text := range map[string]string{"map": idMap, "stat": stat, "status": idMap, "mountinfo": stat, "route": stat} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r := notRoot(0, filepath.Join(dir, "map")); r.Status == Held {
			t.Error("uid 0 is taken for another")
		}
		if w, err := ReadWitness(dir); err == nil && w.Start == "" {
			t.Error("a witness without a moment")
		}
		if r := oneMapping(map[string]int{filepath.Join(dir, "map"): 0}); r.Status == Held && strings.TrimSpace(idMap) == "" {
			t.Error("an empty map holds")
		}
		_, _ = privateMounts(filepath.Join(dir, "mountinfo")), noRouteOut(filepath.Join(dir, "route"), filepath.Join(dir, "route"))
	})
}
