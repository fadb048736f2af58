// Package ca is one session's certificate authority: a root that the sandbox is told to trust, and the leaves its TLS clients see.
//
// The root's key and the one leaf key are made in memory and never leave it; only the root certificate goes to the sandbox. The profile
// is the one that every client stack was seen to accept: ECDSA P-256, keyUsage, subjectKeyIdentifier and a critical basicConstraints
// on the root (Python 3.13 insists), and a subjectAltName on every leaf. There are no name constraints: a refused host is told so
// over a leaf of this same root, so the names cannot be known beforehand. The root trusts nobody but this session's gateway, and
// dies with it.
package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
)

const (
	// Backdate is how far behind the host's clock a client's may be.
	Backdate = time.Hour
	// Margin is how long certificates outlive the session, for clients whose clock is ahead.
	Margin = time.Hour
	// LeafLife is the longest a leaf lives; it is minted again before its last Margin begins.
	LeafLife = 24 * time.Hour

	defaultDuration = 24 * time.Hour
	defaultLeaves   = 4096
	refusalLeaves   = 64
	serialBytes     = 16 // 126 random bits; RFC 5280 §4.1.2.2 allows 20 bytes
)

var (
	// ErrBudget says that too many different names were refused in a short time: the connection is closed without explanation.
	ErrBudget = errors.New("ca: the budget for refusal certificates is spent")
	// ErrExpired says that the clock stands outside the authority's life.
	ErrExpired = errors.New("ca: outside the authority's life")
	// ErrNoName refuses to certify the zero Host.
	ErrNoName = errors.New("ca: no host name")
)

// Config says for whom and how long an Authority is. Session is needed.
type Config struct {
	Session  gate.SessionID
	Duration time.Duration // of the session; zero: 24 hours
	Leaves   int           // leaves kept, least recently used first out; zero: 4,096 (about 4 MiB)
	Refusals limit.Rate    // leaves minted for refused hosts; zero: 20 a second, 64 at once

	Now    func() time.Time // nil: time.Now
	Random io.Reader        // of serial numbers; nil: crypto/rand. Keys and signatures always draw from the system (Go ≥ 1.26).
}

// Authority mints the certificates of one session. The zero Authority mints nothing. Safe for concurrent use.
type Authority struct {
	now    func() time.Time
	random io.Reader

	root    *x509.Certificate // nil in the zero Authority
	rootPEM []byte
	rootKey *ecdsa.PrivateKey
	leafKey *ecdsa.PrivateKey // of every leaf: the leaves share one holder, so separate keys would protect nothing

	leaves   *cache
	refusals *cache
	budget   *rate.Limiter
	flights  singleflight.Group
}

// New makes an authority with fresh keys.
func New(c Config) (*Authority, error) {
	if c.Session.IsZero() {
		return nil, errors.New("ca: a session is needed")
	}
	if c.Duration < 0 || c.Leaves < 0 || c.Refusals.Per < 0 || c.Refusals.Burst < 0 {
		return nil, errors.New("ca: a negative bound")
	}
	if c.Duration == 0 {
		c.Duration = defaultDuration
	}
	if c.Leaves == 0 {
		c.Leaves = defaultLeaves
	}
	if c.Refusals == (limit.Rate{}) {
		c.Refusals = limit.Rate{Per: 20, Burst: refusalLeaves}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	a := &Authority{
		now: c.Now, random: c.Random,
		leaves: newCache(c.Leaves), refusals: newCache(refusalLeaves),
		budget: rate.NewLimiter(rate.Limit(c.Refusals.Per), c.Refusals.Burst),
	}
	var err error
	if a.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), nil); err != nil {
		return nil, fmt.Errorf("ca: root key: %w", err)
	}
	if a.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), nil); err != nil {
		return nil, fmt.Errorf("ca: leaf key: %w", err)
	}
	if err := a.makeRoot(c.Session, c.Duration); err != nil {
		return nil, fmt.Errorf("ca: root: %w", err)
	}
	return a, nil
}

func (a *Authority) makeRoot(session gate.SessionID, life time.Duration) error {
	serial, err := a.serial()
	if err != nil {
		return err
	}
	now := a.now()
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "postern session CA " + short(session)},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(life + Margin),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(a.random, t, t, a.rootKey.Public(), a.rootKey)
	if err != nil {
		return err
	}
	if a.root, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.rootPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return nil
}

// short is enough of a session's name to tell its root from another's in a trust store.
func short(s gate.SessionID) string { return s.String()[:min(9, len(s.String()))] }

// PEM is the root certificate as the sandbox's trust stores want it. It ends with a newline and holds no key.
func (a *Authority) PEM() []byte { return append([]byte(nil), a.rootPEM...) }

// Leaf is the certificate of an allowed host: cached, and minted once however many ask at the same time.
func (a *Authority) Leaf(h gate.Host) (*tls.Certificate, error) {
	now, err := a.check(h)
	if err != nil {
		return nil, err
	}
	if leaf := a.leaves.get(h, now); leaf != nil {
		return leaf, nil
	}
	return a.fly("leaf "+h.String(), func() (*tls.Certificate, error) {
		if leaf := a.leaves.get(h, now); leaf != nil {
			return leaf, nil
		}
		return a.mint(h, now, a.leaves)
	})
}

// RefusalLeaf is the certificate that delivers a refusal for h. Few are kept, and minting draws on a budget of its own, so that a
// sandbox that asks for ever new names can neither crowd out the leaves in use nor burn the host's CPU: then it gets ErrBudget.
func (a *Authority) RefusalLeaf(h gate.Host) (*tls.Certificate, error) {
	now, err := a.check(h)
	if err != nil {
		return nil, err
	}
	if leaf := a.cached(h, now); leaf != nil {
		return leaf, nil
	}
	return a.fly("refusal "+h.String(), func() (*tls.Certificate, error) {
		if leaf := a.cached(h, now); leaf != nil {
			return leaf, nil
		}
		if !a.budget.AllowN(now, 1) {
			return nil, ErrBudget
		}
		return a.mint(h, now, a.refusals)
	})
}

// cached looks in both caches: a host may be allowed on one port and refused on another.
func (a *Authority) cached(h gate.Host, now time.Time) *tls.Certificate {
	if leaf := a.refusals.get(h, now); leaf != nil {
		return leaf
	}
	return a.leaves.get(h, now)
}

func (a *Authority) check(h gate.Host) (time.Time, error) {
	if a == nil || a.root == nil {
		return time.Time{}, ErrExpired
	}
	if h.IsZero() {
		return time.Time{}, ErrNoName
	}
	now := a.now()
	if now.Before(a.root.NotBefore) || !now.Before(a.root.NotAfter) {
		return time.Time{}, ErrExpired
	}
	return now, nil
}

func (a *Authority) fly(key string, mint func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	v, err, _ := a.flights.Do(key, func() (any, error) { return mint() })
	if err != nil {
		return nil, err
	}
	return v.(*tls.Certificate), nil
}

func (a *Authority) mint(h gate.Host, now time.Time, into *cache) (*tls.Certificate, error) {
	serial, err := a.serial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		// A subject without a name: the subjectAltName alone names the host, and need not be critical (RFC 5280 §4.2.1.6).
		Subject:               pkix.Name{Organization: []string{"postern"}},
		DNSNames:              []string{h.String()},
		NotBefore:             later(now.Add(-Backdate), a.root.NotBefore),
		NotAfter:              earlier(now.Add(LeafLife), a.root.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(a.random, t, a.root, a.leafKey.Public(), a.rootKey)
	if err != nil {
		return nil, fmt.Errorf("ca: leaf: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("ca: leaf: %w", err)
	}
	// The root stays out of the chain: a client that trusts it has it, and another gains nothing from 500 bytes more.
	leaf := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}
	until := parsed.NotAfter.Add(-Margin)
	if !parsed.NotAfter.Before(a.root.NotAfter) {
		until = parsed.NotAfter // minting again would gain nothing
	}
	into.put(h, leaf, until)
	return leaf, nil
}

// serial draws a positive serial number (RFC 5280 §4.1.2.2).
func (a *Authority) serial() (*big.Int, error) {
	var b [serialBytes]byte
	if _, err := io.ReadFull(a.random, b[:]); err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always of full length
	return new(big.Int).SetBytes(b[:]), nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
