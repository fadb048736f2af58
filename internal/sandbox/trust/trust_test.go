package trust

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"software.sslmate.com/src/go-pkcs12"

	"postern/internal/sandbox/native"
)

func TestMain(m *testing.M) {
	if os.Args[0] == native.InitName {
		native.Init(listen)
	}
	os.Exit(m.Run())
}

// listen opens the one port of the test's sandbox.
func listen([]byte) ([]*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return nil, err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443})
	if err != nil {
		return nil, err
	}
	f, err := l.File()
	return []*os.File{f}, err
}

// authority is a CA as the gateway's is.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "session"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1, 2, 3},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) leaf(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, AuthorityKeyId: []byte{1, 2, 3},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// visit runs a client in a sandbox against an HTTPS server with a leaf of the CA, with what the bundle brings, changed by change.
func visit(t *testing.T, script string, change func(*native.Spec)) (string, int) {
	t.Helper()
	a := newAuthority(t)
	b, err := New(a.pem)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec := native.Spec{
		Command: []string{"sh", "-c", script},
		Env:     append(b.Env(), "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/tester"),
		Home:    "/home/tester", Workdir: work, Mounts: []native.Mount{{Source: work, Write: true}},
		Files:  append(b.Files(), native.File{Path: "/etc/hosts", Content: []byte("127.0.0.1 localhost api.example.com\n")}),
		Stdout: w, Stderr: w,
	}
	change(&spec)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := native.Start(ctx, spec)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(p.Sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Sockets()[0].Close()
	srv := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "trusted-answer\n") }),
		ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{a.leaf(t, "api.example.com")}},
	}
	go srv.ServeTLS(l, "", "")
	defer srv.Close()
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, r); err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), st.Code
}

const javaClient = `
cat >Client.java <<'EOF'
import java.net.URI; import java.net.http.*;
public class Client { public static void main(String[] a) throws Exception {
  System.out.print(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("https://api.example.com/")).build(), HttpResponse.BodyHandlers.ofString()).body()); } }
EOF
java -Xshare:auto Client.java`

func clients() map[string]string {
	return map[string]string{
		"curl":    "curl -sS https://api.example.com/",
		"wget":    "wget -qO- https://api.example.com/",
		"openssl": "openssl s_client -quiet -verify_return_error -connect api.example.com:443 </dev/null 2>&1 | grep -q verify.return:1 && echo trusted-answer",
		"python":  "/usr/bin/python3 -c 'import urllib.request; print(urllib.request.urlopen(\"https://api.example.com/\").read().decode())'",
		"node":    "node -e 'fetch(\"https://api.example.com/\").then(r => r.text()).then(console.log)'",
		"git":     "git ls-remote https://api.example.com/x 2>&1 | grep -q 'not valid: is this a git repository' && echo trusted-answer",
		"java":    javaClient,
	}
}

func TestClientsTrustTheSessionsCA(t *testing.T) {
	for name, script := range clients() {
		t.Run(name, func(t *testing.T) {
			if out, code := visit(t, script, func(*native.Spec) {}); !strings.Contains(out, "trusted-answer") || code != 0 {
				t.Errorf("status %d: %s", code, out)
			}
		})
	}
}

func TestClientsDoNotTrustItWithoutTheBundle(t *testing.T) {
	bare := func(s *native.Spec) {
		s.Files = slices.DeleteFunc(s.Files, func(f native.File) bool { return f.Path != "/etc/hosts" })
		s.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/tester"}
	}
	for _, name := range []string{"curl", "python", "node", "git", "java"} {
		if out, _ := visit(t, clients()[name], bare); strings.Contains(out, "trusted-answer") {
			t.Errorf("%s trusts anybody: %s", name, out)
		}
	}
}

func TestSystemStoreAloneServesWhatReadsIt(t *testing.T) {
	noEnv := func(s *native.Spec) { s.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/tester"} }
	for _, name := range []string{"curl", "wget", "openssl", "python", "git", "java"} {
		if out, code := visit(t, clients()[name], noEnv); !strings.Contains(out, "trusted-answer") || code != 0 {
			t.Errorf("%s: status %d: %s", name, code, out)
		}
	}
}

func TestEnvironmentAloneServesJava(t *testing.T) {
	noOverlay := func(s *native.Spec) {
		s.Files = slices.DeleteFunc(s.Files, func(f native.File) bool { return f.Overlay })
	}
	for _, name := range []string{"java", "git", "curl"} {
		if out, code := visit(t, clients()[name], noOverlay); !strings.Contains(out, "trusted-answer") || code != 0 {
			t.Errorf("%s: status %d: %s", name, code, out)
		}
	}
}

func TestBundleKeepsTheHostsRoots(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	host := filepath.Join(dir, "bundle.pem")
	if err := os.WriteFile(host, append([]byte("# a comment\n"), bytes.Repeat(other.pem, 2)...), 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := load(a.pem, []string{filepath.Join(dir, "absent"), host}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := certificates(b.merged); len(got) != 2 || !bytes.Equal(got[0], other.cert.Raw) || !bytes.Equal(got[1], a.cert.Raw) {
		t.Errorf("the bundle has %d certificates", len(got))
	}
	stored, err := pkcs12.DecodeTrustStore(b.store, "")
	if err != nil || len(stored) != 2 || !bytes.Equal(stored[1].Raw, a.cert.Raw) {
		t.Errorf("the trust store has %d certificates: %v", len(stored), err)
	}
	if got := certificates(b.ca); len(got) != 1 || !bytes.Equal(got[0], a.cert.Raw) {
		t.Error("the CA's own file does not hold it alone")
	}
}

func TestHostWithoutRootsIsTold(t *testing.T) {
	a := newAuthority(t)
	b, err := load(a.pem, []string{filepath.Join(t.TempDir(), "absent")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.merged, b.ca) || len(b.Notes()) != 1 {
		t.Errorf("%q %q", b.merged, b.Notes())
	}
}

func TestUnusableInputIsRefused(t *testing.T) {
	a := newAuthority(t)
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.leaf(t, "x.test").Certificate[0]})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	for name, text := range map[string][]byte{
		"empty": nil, "garbage": []byte("x"), "two": append(slices.Clone(a.pem), a.pem...), "leaf": leaf, "key": key, "with a key": append(slices.Clone(a.pem), key...),
		"broken": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
	} {
		if _, err := load(text, nil, nil); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	huge := filepath.Join(t.TempDir(), "huge")
	if err := os.Truncate(must(os.Create(huge)).Name(), maxBundle+1); err != nil {
		t.Fatal(err)
	}
	if _, err := load(a.pem, []string{huge}, nil); err == nil {
		t.Error("a bundle without bounds was read")
	}
	if _, err := load(a.pem, []string{t.TempDir()}, nil); err == nil {
		t.Error("a bundle that cannot be read was passed over")
	}
}

func must(f *os.File, err error) *os.File {
	if err != nil {
		panic(err)
	}
	f.Close()
	return f
}

func TestVariablesNameFilesThatAreThere(t *testing.T) {
	b, err := New(newAuthority(t).pem)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range b.Files() {
		have[f.Path] = true
	}
	for _, kv := range b.Env() {
		name, value, _ := strings.Cut(kv, "=")
		value = strings.TrimPrefix(value, "-Djavax.net.ssl.trustStore=")
		value, _, _ = strings.Cut(value, " ")
		if strings.HasPrefix(value, "/") && !have[value] {
			t.Errorf("%s names %s, which is not generated", name, value)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	ca := newAuthority(b).pem
	for b.Loop() {
		if _, err := New(ca); err != nil {
			b.Fatal(err)
		}
	}
}
