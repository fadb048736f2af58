package inspect

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"strings"
)

func trustChecks() []Check {
	const distrust = "clients fail with a certificate error instead of a reason"
	return []Check{
		{ID: "trust.store", Title: "the system's trust store has the session's certificate", Means: distrust, Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return bundlesHold(p, systemBundles()) }},
		{ID: "trust.verify", Title: "a TLS client with the system's roots trusts the gateway", Means: distrust, Remedy: mendStart,
			run: func(ctx context.Context, p *Plan) Result { return verifies(ctx, p, net.JoinHostPort(p.Public4, "443")) }},
		{ID: "trust.variables", Title: "clients with trust stores of their own are pointed to it", Means: distrust, Remedy: "let `env:` of the profile not set variables that name a trust store",
			run: func(_ context.Context, p *Plan) Result { return variablesHold(p, os.Getenv, installed) }},
	}
}

// systemBundles are the files that OpenSSL, GnuTLS and Go read by default on Debian, Red Hat, SUSE and Alpine.
func systemBundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem",
		"/var/lib/ca-certificates/ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem",
	}
}

// maxBundle is far more than any list of roots takes.
const maxBundle = 8 << 20

func bundlesHold(p *Plan, paths []string) Result {
	ca, err := certificate(p.CA)
	if err != nil {
		return notHeld("the session's certificate: %v", err)
	}
	var have []string
	for _, path := range paths {
		text, err := readBundle(path)
		if err != nil {
			continue
		}
		if !holds(text, ca) {
			return notHeld("%s lacks it", path)
		}
		have = append(have, path)
	}
	if len(have) == 0 {
		return notHeld("no bundle is where clients look for it")
	}
	return held("%s", strings.Join(have, ", "))
}

func readBundle(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), maxBundle))
	n, err := f.ReadAt(b, 0)
	if n < len(b) {
		return nil, err
	}
	return b, nil
}

func verifies(ctx context.Context, p *Plan, address string) Result {
	var roots *x509.CertPool // the system's
	status, reason, err := refusal(ctx, p, address, roots)
	if err != nil {
		return notHeld("%s", plain(err))
	}
	return held("%d %s", status, reason)
}

// variablesHold looks at the variables that name a trust store, and at those that a client which is installed cannot do without.
func variablesHold(p *Plan, getenv func(string) string, installed func(string) bool) Result {
	ca, err := certificate(p.CA)
	if err != nil {
		return notHeld("the session's certificate: %v", err)
	}
	var good []string
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "DENO_CERT",
		"AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE", "BUNDLE_SSL_CA_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "CODEX_CA_CERTIFICATE",
	} {
		path := getenv(name)
		if path == "" {
			continue
		}
		text, err := readBundle(path)
		if err != nil {
			return notHeld("%s: %v", name, err)
		}
		if !holds(text, ca) {
			return notHeld("%s names %s, which lacks it", name, path)
		}
		good = append(good, name)
	}
	for _, c := range [][2]string{{"node", "NODE_EXTRA_CA_CERTS"}, {"java", "JAVA_TOOL_OPTIONS"}, {"python3", "REQUESTS_CA_BUNDLE"}} {
		if installed(c[0]) && getenv(c[1]) == "" {
			return notHeld("%s is installed and %s is not set", c[0], c[1])
		}
	}
	if store, ok := javaStore(getenv("JAVA_TOOL_OPTIONS")); ok {
		if _, err := os.Stat(store); err != nil {
			return notHeld("JAVA_TOOL_OPTIONS: %v", err)
		}
		good = append(good, "JAVA_TOOL_OPTIONS")
	}
	if len(good) == 0 {
		return unavailable("no variable is set, and no client is installed that needs one")
	}
	return held("%s", strings.Join(good, ", "))
}

// javaStore finds the trust store among the options of a Java machine.
func javaStore(options string) (string, bool) {
	for o := range strings.FieldsSeq(options) {
		if path, ok := strings.CutPrefix(o, "-Djavax.net.ssl.trustStore="); ok {
			return path, true
		}
	}
	return "", false
}

func installed(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}
