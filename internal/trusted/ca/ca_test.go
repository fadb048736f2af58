package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func host(t testing.TB, s string) gate.Host {
	t.Helper()
	h, err := gate.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func authority(t testing.TB, change func(*Config)) (*Authority, *clock) {
	t.Helper()
	clk := &clock{t: time.Now()}
	c := Config{Session: gate.NewSessionID([10]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), Duration: 8 * time.Hour, Now: clk.now}
	if change != nil {
		change(&c)
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a, clk
}

func TestRootHasTheProfileThatEveryStackAccepts(t *testing.T) {
	a, clk := authority(t, nil)
	block, rest := pem.Decode(a.PEM())
	if block == nil || block.Type != "CERTIFICATE" || len(rest) != 0 {
		t.Fatalf("PEM holds something else than one certificate")
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !root.IsCA || !root.BasicConstraintsValid || root.MaxPathLen != 0 || !root.MaxPathLenZero {
		t.Errorf("basicConstraints: CA %v, path length %d", root.IsCA, root.MaxPathLen)
	}
	if !critical(root, 19) || !critical(root, 15) {
		t.Error("basicConstraints and keyUsage must be critical")
	}
	if root.KeyUsage&x509.KeyUsageCertSign == 0 || len(root.SubjectKeyId) == 0 {
		t.Errorf("keyUsage %v, subjectKeyIdentifier %x", root.KeyUsage, root.SubjectKeyId)
	}
	if k, ok := root.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		t.Errorf("key is %T, want ECDSA P-256", root.PublicKey)
	}
	if !strings.HasPrefix(root.Subject.CommonName, "postern session CA s") {
		t.Errorf("CN %q", root.Subject.CommonName)
	}
	if want := clk.now().Add(-Backdate); root.NotBefore.After(want) {
		t.Errorf("notBefore %v is not backdated to %v", root.NotBefore, want)
	}
	if life := root.NotAfter.Sub(clk.now()); life > 8*time.Hour+Margin || life < 8*time.Hour {
		t.Errorf("root lives %v beyond now", life)
	}
	checkSerial(t, root)
}

func critical(c *x509.Certificate, last int) bool {
	for _, e := range c.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, last}) {
			return e.Critical
		}
	}
	return false
}

func checkSerial(t *testing.T, c *x509.Certificate) {
	t.Helper()
	if n := c.SerialNumber.BitLen(); c.SerialNumber.Sign() <= 0 || n < 64 || n > 159 {
		t.Errorf("serial has %d bits", n)
	}
}

func TestLeafNamesOneHostAndServesOnly(t *testing.T) {
	a, clk := authority(t, nil)
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + "." + strings.Repeat("d", 60) + ".example"
	for _, name := range []string{"api.example.com", "xn--bcher-kva.example", "a_b.example", "x", long} {
		crt, err := a.Leaf(host(t, name))
		if err != nil {
			t.Fatal(err)
		}
		leaf := crt.Leaf
		if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name || len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) != 0 {
			t.Errorf("SANs %v", leaf.DNSNames)
		}
		if leaf.Subject.CommonName != "" {
			t.Errorf("CN %q: the name belongs in the SAN alone", leaf.Subject.CommonName)
		}
		if leaf.IsCA || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("CA %v, EKU %v, usage %v", leaf.IsCA, leaf.ExtKeyUsage, leaf.KeyUsage)
		}
		if len(leaf.AuthorityKeyId) == 0 || !bytes.Equal(leaf.AuthorityKeyId, a.root.SubjectKeyId) {
			t.Error("authorityKeyIdentifier is not the root's")
		}
		if leaf.NotBefore.Before(a.root.NotBefore) || leaf.NotAfter.After(a.root.NotAfter) {
			t.Error("leaf outlives its root")
		}
		checkSerial(t, leaf)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(a.PEM())
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: clk.now()}); err != nil {
			t.Errorf("verify %s: %v", name, err)
		}
	}
}

func TestHandshakeWithALeaf(t *testing.T) {
	a, _ := authority(t, nil)
	h := host(t, "api.example.com")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		leaf, err := a.Leaf(h)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(a.PEM())
		c, s := net.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- tls.Server(s, &tls.Config{Certificates: []tls.Certificate{*leaf}, SessionTicketsDisabled: true}).Handshake()
		}()
		client := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: h.String(), MinVersion: version, MaxVersion: version})
		if err := client.Handshake(); err != nil {
			t.Errorf("client: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
		c.Close()
		s.Close()
	}
}

func TestOpenSSLAcceptsTheLeafStrictly(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Fatal("openssl is needed by this test: ", err)
	}
	a, _ := authority(t, nil)
	leaf, err := a.Leaf(host(t, "api.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, crt := filepath.Join(dir, "root.pem"), filepath.Join(dir, "leaf.pem")
	if err := os.WriteFile(root, a.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(name string) (string, error) {
		out, err := exec.Command(openssl, "verify", "-x509_strict", "-check_ss_sig", "-purpose", "sslserver", "-verify_hostname", name, "-CAfile", root, crt).CombinedOutput()
		return string(out), err
	}
	if out, err := verify("api.example.com"); err != nil {
		t.Errorf("openssl refuses: %v\n%s", err, out)
	}
	if out, err := verify("other.example.com"); err == nil {
		t.Errorf("openssl accepts the leaf for another name:\n%s", out)
	}
}

func TestLeafIsMintedOnceHoweverManyAsk(t *testing.T) {
	a, _ := authority(t, nil)
	h := host(t, "api.example.com")
	var wg sync.WaitGroup
	got := make([]*tls.Certificate, 64)
	for i := range got {
		wg.Go(func() {
			leaf, err := a.Leaf(h)
			if err != nil {
				t.Error(err)
			}
			got[i] = leaf
		})
	}
	wg.Wait()
	for _, leaf := range got {
		if leaf != got[0] {
			t.Fatal("two leaves for one host")
		}
	}
}

func TestLeafIsMintedAgainBeforeItExpires(t *testing.T) {
	a, clk := authority(t, func(c *Config) { c.Duration = 100 * time.Hour })
	h := host(t, "api.example.com")
	first, err := a.Leaf(h)
	if err != nil {
		t.Fatal(err)
	}
	clk.add(LeafLife - Margin - time.Second)
	if again, err := a.Leaf(h); err != nil || again != first {
		t.Errorf("minted again too early: %v", err)
	}
	clk.add(2 * time.Second)
	again, err := a.Leaf(h)
	if err != nil || again == first {
		t.Fatalf("not minted again: %v", err)
	}
	if !again.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Error("the second leaf lives no longer")
	}
	if first.Leaf.SerialNumber.Cmp(again.Leaf.SerialNumber) == 0 {
		t.Error("a serial number was used twice")
	}
	clk.add(-LeafLife - 2*time.Hour) // the clock jumped back before the leaf's notBefore, and before the root's
	if _, err := a.Leaf(h); !errors.Is(err, ErrExpired) {
		t.Errorf("clock before the root's life: %v", err)
	}
}

func TestNothingIsMintedOutsideTheAuthoritysLife(t *testing.T) {
	a, clk := authority(t, nil)
	h := host(t, "api.example.com")
	if _, err := a.Leaf(h); err != nil {
		t.Fatal(err)
	}
	clk.add(8*time.Hour + Margin)
	if _, err := a.Leaf(h); !errors.Is(err, ErrExpired) {
		t.Errorf("expired authority: %v", err)
	}
	if _, err := a.RefusalLeaf(h); !errors.Is(err, ErrExpired) {
		t.Errorf("expired authority: %v", err)
	}
}

func TestZeroValuesMintNothing(t *testing.T) {
	a, _ := authority(t, nil)
	if _, err := a.Leaf(gate.Host{}); !errors.Is(err, ErrNoName) {
		t.Errorf("zero host: %v", err)
	}
	if _, err := a.RefusalLeaf(gate.Host{}); !errors.Is(err, ErrNoName) {
		t.Errorf("zero host: %v", err)
	}
	if _, err := new(Authority).Leaf(host(t, "a.example")); err == nil {
		t.Error("the zero Authority minted")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("an authority without a session")
	}
	if _, err := New(Config{Session: gate.NewSessionID([10]byte{}), Leaves: -1}); err == nil {
		t.Error("a negative bound")
	}
	broken := Config{Session: gate.NewSessionID([10]byte{}), Random: strings.NewReader("")}
	if _, err := New(broken); err == nil {
		t.Error("a serial number without randomness")
	}
}

func TestRefusalsHaveTheirOwnBudgetAndCache(t *testing.T) {
	a, clk := authority(t, func(c *Config) { c.Refusals = limit.Rate{Per: 1, Burst: 3} })
	kept, err := a.Leaf(host(t, "kept.example"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := a.RefusalLeaf(host(t, fmt.Sprintf("r%d.example", i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.RefusalLeaf(host(t, "r3.example")); !errors.Is(err, ErrBudget) {
		t.Errorf("beyond the budget: %v", err)
	}
	if _, err := a.RefusalLeaf(host(t, "r0.example")); err != nil {
		t.Errorf("a cached refusal costs no budget: %v", err)
	}
	if leaf, err := a.RefusalLeaf(host(t, "kept.example")); err != nil || leaf != kept {
		t.Errorf("a leaf that is in use serves for refusals too: %v", err)
	}
	if _, err := a.Leaf(host(t, "allowed.example")); err != nil {
		t.Errorf("allowed hosts do not draw on the budget: %v", err)
	}
	clk.add(time.Second)
	if _, err := a.RefusalLeaf(host(t, "r3.example")); err != nil {
		t.Errorf("the budget refills: %v", err)
	}
	if a.leaves.len() != 2 {
		t.Errorf("refusals crowd the leaves: %d", a.leaves.len())
	}
}

func TestCachesAreBounded(t *testing.T) {
	a, _ := authority(t, func(c *Config) { c.Leaves = 8; c.Refusals = limit.Rate{Per: 1, Burst: 200} })
	first := host(t, "h0.example")
	for i := range 40 {
		if _, err := a.Leaf(host(t, fmt.Sprintf("h%d.example", i))); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Leaf(first); err != nil { // stays because it is used
			t.Fatal(err)
		}
	}
	if a.leaves.len() != 8 {
		t.Errorf("%d leaves kept", a.leaves.len())
	}
	if a.leaves.get(first, a.now()) == nil {
		t.Error("the most used leaf was dropped")
	}
	for i := range 100 {
		if _, err := a.RefusalLeaf(host(t, fmt.Sprintf("r%d.example", i))); err != nil {
			t.Fatal(err)
		}
	}
	if a.refusals.len() != refusalLeaves {
		t.Errorf("%d refusal leaves kept", a.refusals.len())
	}
}

func TestAuthoritiesShareNothing(t *testing.T) {
	a, clk := authority(t, nil)
	b, _ := authority(t, nil)
	leaf, err := b.Leaf(host(t, "api.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM())
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "api.example.com", CurrentTime: clk.now()}); err == nil {
		t.Error("a leaf verifies under another session's root of the same name")
	}
	if a.leafKey.Equal(b.leafKey) || a.rootKey.Equal(b.rootKey) || a.rootKey.Equal(a.leafKey) {
		t.Error("a key was used twice")
	}
}

func BenchmarkLeafCached(b *testing.B) {
	a, _ := authority(b, nil)
	h := host(b, "api.example.com")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Leaf(h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeafMint(b *testing.B) {
	a, _ := authority(b, nil)
	h := host(b, "api.example.com")
	now := a.now()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.mint(h, now, a.leaves); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		authority(b, nil)
	}
}
