package egress

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxRoots bounds one file of root certificates, in bytes. Debian's holds 220 KiB.
const maxRoots = 8 << 20

// systemRoots reads the distribution's root certificates. crypto/x509's own reader obeys SSL_CERT_FILE and SSL_CERT_DIR, so whoever
// sets the environment would choose whom credentials are sent to; this one does not.
func systemRoots() (*x509.CertPool, error) {
	files := []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch, Alpine
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
		"/etc/ssl/cert.pem",                                 // Alpine
	}
	for _, f := range files {
		pool, err := ReadRoots(f)
		if err == nil {
			return pool, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return readRootDir("/etc/ssl/certs")
}

// ReadRoots reads a PEM file of root certificates, at most 8 MiB.
func ReadRoots(name string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if err := addRoots(pool, name); err != nil {
		return nil, err
	}
	return pool, nil
}

func addRoots(pool *x509.CertPool, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("root certificates: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("root certificates: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRoots {
		return fmt.Errorf("root certificates: %s is not a file of at most 8 MiB", name)
	}
	pem := make([]byte, info.Size())
	if _, err := io.ReadFull(f, pem); err != nil {
		return fmt.Errorf("root certificates: %s: %w", name, err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("root certificates: %s holds none", name)
	}
	return nil
}

func readRootDir(dir string) (*x509.CertPool, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	pool, found := x509.NewCertPool(), false
	for _, name := range names[:min(len(names), 1024)] {
		found = addRoots(pool, name) == nil || found
	}
	if !found {
		return nil, errors.New("root certificates: none on this system; install ca-certificates")
	}
	return pool, nil
}
