// Package trust makes the programs in a sandbox trust the session's CA: the host's bundle with that CA added, laid over the system's
// own files, a trust store for Java, and the environment variables for runtimes that look elsewhere. It only reads; what it makes is
// handed to the runner and is gone with the session.
//
// Chromium keeps its own NSS database and is not served. On Fedora and its relatives, programs that ask p11-kit instead of reading the
// bundle (GnuTLS's, such as wget2) are not served either.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"software.sslmate.com/src/go-pkcs12"

	"postern/internal/sandbox/native"
)

// Where the generated files are in the sandbox. Dir is on its private /run: what the command changes there only it sees.
const (
	Dir        = "/run/postern"
	CAFile     = Dir + "/session-ca.pem" // the session's CA alone
	BundleFile = Dir + "/ca-bundle.pem"  // the host's roots and the session's CA
	StoreFile  = Dir + "/cacerts.p12"    // the same for Java
)

// maxBundle is the size in bytes up to which a bundle of the host is read; the public web's is about 220,000.
const maxBundle = 8 << 20

// bundlePaths are where systems keep their roots in one file: Debian and Alpine, Red Hat (also by its links), Alpine and Arch, SUSE,
// NixOS.
func bundlePaths() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/pki/tls/certs/ca-bundle.trust.crt",
		"/etc/pki/tls/cert.pem",
		"/etc/ssl/cert.pem",
		"/etc/ca-certificates/extracted/tls-ca-bundle.pem",
		"/etc/ssl/ca-bundle.pem",
		"/var/lib/ca-certificates/ca-bundle.pem",
		"/etc/ssl/certs/ca-bundle.crt",
	}
}

// storePatterns are where Java keeps its roots; home is for version managers.
func storePatterns(home string) []string {
	return []string{
		"/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts", "/etc/java/security/cacerts",
		"/usr/lib/jvm/*/lib/security/cacerts", "/usr/lib/jvm/*/jre/lib/security/cacerts", "/usr/java/*/lib/security/cacerts",
		"/opt/*/lib/security/cacerts", "/opt/*/*/lib/security/cacerts",
		filepath.Join(home, ".sdkman/candidates/java/*/lib/security/cacerts"), filepath.Join(home, ".asdf/installs/java/*/lib/security/cacerts"),
		filepath.Join(home, ".local/share/mise/installs/java/*/lib/security/cacerts"),
	}
}

// Bundle is what one session's sandbox trusts.
type Bundle struct {
	ca     []byte   // PEM
	merged []byte   // PEM
	store  []byte   // PKCS#12
	stores []string // of the host, to be laid over
	notes  []string
}

// New reads the host's roots and adds the session's CA, which must be one certificate of a CA in PEM. A host without any bundle is no
// error: the gateway's certificates are all that most sandboxes ever see.
func New(caPEM []byte) (*Bundle, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/" // nothing is found below it
	}
	return load(caPEM, bundlePaths(), storePatterns(home))
}

func load(caPEM []byte, bundles, stores []string) (*Bundle, error) {
	ca, err := parseCA(caPEM)
	if err != nil {
		return nil, fmt.Errorf("session CA: %w", err)
	}
	b := &Bundle{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca})}
	host, err := readFirst(bundles)
	if err != nil {
		return nil, err
	}
	roots := certificates(host)
	if len(roots) == 0 {
		host = nil
		b.notes = append(b.notes, "this host has no bundle of root certificates: hosts with `tls: tunnel` are not trusted in the sandbox")
	}
	b.merged = append(bytes.TrimRight(host, "\n"), '\n')
	if len(host) == 0 {
		b.merged = nil
	}
	b.merged = append(b.merged, b.ca...)
	if b.store, err = encodeStore(append(roots, ca)); err != nil {
		return nil, fmt.Errorf("trust store for Java: %w", err)
	}
	b.stores = existing(stores)
	return b, nil
}

// parseCA returns the DER form of the one certificate in text.
func parseCA(text []byte) ([]byte, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("not exactly one certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, errors.New("not the certificate of a CA")
	}
	return block.Bytes, nil
}

// readFirst reads the first of the files that there is. One that cannot be read is an error: to go on would quietly take away trust.
func readFirst(names []string) ([]byte, error) {
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("root certificates: %w", err)
		}
		defer f.Close()
		var b bytes.Buffer
		n, err := io.Copy(&b, io.LimitReader(f, maxBundle+1))
		if err != nil {
			return nil, fmt.Errorf("root certificates: %w", err)
		}
		if n > maxBundle {
			return nil, fmt.Errorf("root certificates: %s is larger than %d bytes", name, maxBundle)
		}
		return b.Bytes(), nil
	}
	return nil, nil
}

// certificates lists the DER forms in a bundle, each once. They are not parsed: a root that Go refuses may be one that others need.
func certificates(bundle []byte) [][]byte {
	var list [][]byte
	seen := map[string]bool{}
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return list
		}
		if block.Type == "CERTIFICATE" && !seen[string(block.Bytes)] {
			seen[string(block.Bytes)] = true
			list = append(list, block.Bytes)
		}
	}
}

// encodeStore makes a trust store without a password: there is nothing secret in it, a key derivation would cost more than all the
// rest of a start, and Java reads it with any password or none.
func encodeStore(certs [][]byte) ([]byte, error) {
	entries := make([]pkcs12.TrustStoreEntry, len(certs))
	for i, der := range certs {
		entries[i] = pkcs12.TrustStoreEntry{Cert: &x509.Certificate{Raw: der}, FriendlyName: "root-" + strconv.Itoa(i)}
	}
	entries[len(entries)-1].FriendlyName = "postern-session"
	return pkcs12.Passwordless.EncodeTrustStoreEntries(entries, "")
}

// existing expands patterns to the real files behind them, each once.
func existing(patterns []string) []string {
	var list []string
	for _, p := range patterns {
		found, _ := filepath.Glob(p) // the only error is a bad pattern
		for _, f := range found {
			if real, err := filepath.EvalSymlinks(f); err == nil {
				list = append(list, real)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Notes says what this host lacks.
func (b *Bundle) Notes() []string { return slices.Clone(b.notes) }

// Files are the generated files: three of our own, and one over each bundle and trust store that the sandbox has.
func (b *Bundle) Files() []native.File {
	files := []native.File{
		{Path: CAFile, Content: b.ca},
		{Path: BundleFile, Content: b.merged},
		{Path: StoreFile, Content: b.store},
	}
	for _, p := range bundlePaths() {
		files = append(files, native.File{Path: p, Content: b.merged, Overlay: true})
	}
	for _, p := range b.stores {
		files = append(files, native.File{Path: p, Content: b.store, Overlay: true})
	}
	return files
}

// Env is what runtimes must be told that do not read the system's file, or not always. A variable that adds to the roots gets the CA
// alone, one that replaces them the whole bundle.
func (b *Bundle) Env() []string {
	var env []string
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NPM_CONFIG_CAFILE", "YARN_HTTPS_CA_FILE_PATH", "GIT_SSL_CAINFO",
		"CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE", "BUNDLE_SSL_CA_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
		"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "HEX_CACERTS_PATH", "CODEX_CA_CERTIFICATE", "PERL_LWP_SSL_CA_FILE",
	} {
		env = append(env, name+"="+BundleFile)
	}
	return append(env,
		"NODE_EXTRA_CA_CERTS="+CAFile,
		"DENO_CERT="+CAFile,
		"NODE_USE_SYSTEM_CA=1",
		"DENO_TLS_CA_STORE=system,mozilla",
		"JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore="+StoreFile+" -Djavax.net.ssl.trustStoreType=PKCS12",
	)
}
