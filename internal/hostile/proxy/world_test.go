package proxy

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/placeholder"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// A world is a proxy between a sandbox and a sink that stands for everything outside. Its parts may be changed before start.
type world struct {
	testing.TB
	config   Config
	limits   limit.Limits
	totals   *limit.Global // nil: those of a gateway with this session alone
	policy   atomic.Pointer[policy.Policy]
	dead     atomic.Pointer[gate.Reason]
	sessions *authority // the session CA
	minter   *minter
	sink     *sink
	upstream *upstream
	log      *recorder
	names    *names
	tokens   map[string]string // placeholders by credential
	proxy    *Proxy
	serving  sync.WaitGroup
}

func newWorld(t testing.TB, rules ...policy.Rule) *world {
	t.Helper()
	w := &world{TB: t, sessions: newAuthority(t), log: &recorder{changed: make(chan struct{}, 1)}, names: &names{}, tokens: map[string]string{}}
	w.minter = &minter{ca: w.sessions, budget: 1000}
	w.sink = newSink(t)
	w.upstream = newUpstream(w.sink)
	set := &placeholder.Set{}
	for _, name := range []string{"main", "other"} {
		w.tokens[name] = newPlaceholder(t)
		must(t, set.Add(credential(t, name), w.tokens[name]))
	}
	w.enforce(rules...)
	w.config = Config{
		Session: newSession(), Policy: w.policy.Load, Minter: w.minter, Upstream: w.upstream, Recorder: w.log, Resolver: w.names,
		Alive: func() gate.Reason {
			if why := w.dead.Load(); why != nil {
				return *why
			}
			return gate.ReasonNone
		},
		Placeholders: set,
	}
	return w
}

// start makes the proxy; the test's end closes everything.
func (w *world) start() *world {
	w.Helper()
	w.config.Limits = limit.New(w.limits, w.totals)
	var err error
	w.proxy, err = New(w.config)
	must(w, err)
	w.Cleanup(func() {
		w.proxy.Close()
		w.serving.Wait()
		w.upstream.close()
		w.sink.close()
	})
	return w
}

func begin(t testing.TB, rules ...policy.Rule) *world {
	t.Helper()
	return newWorld(t, rules...).start()
}

func (w *world) enforce(rules ...policy.Rule) {
	w.Helper()
	p, err := policy.Compile(rules)
	must(w, err)
	w.policy.Store(p)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// allow is a rule for every method and path of a host, over https.
func allow(host string, change ...func(*policy.Rule)) policy.Rule {
	pattern, err := policy.ParseHostPattern(host)
	if err != nil {
		panic(err)
	}
	r := policy.Rule{Name: "rule " + host, Effect: policy.Allow, Host: pattern, Scheme: gate.HTTPS, Methods: gate.AllMethods}
	for _, c := range change {
		c(&r)
	}
	return r
}

func paths(ps ...string) func(*policy.Rule) {
	return func(r *policy.Rule) {
		for _, s := range ps {
			p, err := policy.ParsePathPattern(s)
			if err != nil {
				panic(err)
			}
			r.Paths = append(r.Paths, p)
		}
	}
}

func methods(ms ...gate.Method) func(*policy.Rule) {
	return func(r *policy.Rule) { r.Methods = gate.Methods(ms...) }
}

func cleartext(r *policy.Rule) { r.Scheme = gate.HTTP }
func tunnel(r *policy.Rule)    { r.TLS = policy.Tunnel }
func sockets(r *policy.Rule)   { r.WebSocket = true }
func keep(r *policy.Rule)      { r.KeepClientCredentials = true }

func inject(mode policy.InjectMode, name string, slots ...policy.Slot) func(*policy.Rule) {
	n, err := gate.ParseCredentialName(name)
	if err != nil {
		panic(err)
	}
	return func(r *policy.Rule) { r.Inject = policy.Injection{Mode: mode, Credential: n, Slots: slots} }
}

func header(name, format string) policy.Slot {
	s, err := policy.NewHeaderSlot(name, format)
	if err != nil {
		panic(err)
	}
	return s
}

func basicSlot(user string) policy.Slot {
	s, err := policy.NewBasicSlot(user)
	if err != nil {
		panic(err)
	}
	return s
}

func querySlot(name string) policy.Slot {
	s, err := policy.NewQuerySlot(name)
	if err != nil {
		panic(err)
	}
	return s
}

func credential(t testing.TB, name string) gate.CredentialName {
	n, err := gate.ParseCredentialName(name)
	must(t, err)
	return n
}

func newPlaceholder(t testing.TB) string {
	shape, err := placeholder.ParseShape("sk-test-{base64url:48}")
	must(t, err)
	b := make([]byte, shape.Random())
	rand.Read(b)
	v, err := shape.Make(b)
	must(t, err)
	return v
}

func newSession() gate.SessionID {
	var b [10]byte
	rand.Read(b[:])
	return gate.NewSessionID(b)
}

func host(s string) gate.Host {
	h, err := gate.ParseHost(s)
	if err != nil {
		panic(err)
	}
	return h
}

// names is the session's DNS: the n-th name stands behind 198.18.0.n.
type names struct {
	mu   sync.Mutex
	list []gate.Host
}

func (n *names) Lookup(a netip.Addr) (gate.Host, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := a.As4()
	if i := int(b[3]); b[0] == 198 && i < len(n.list) {
		return n.list[i], true
	}
	return gate.Host{}, false
}

// addressOf gives a name its address, as DNS would.
func (w *world) addressOf(name string) netip.Addr {
	w.names.mu.Lock()
	defer w.names.mu.Unlock()
	i := slices.Index(w.names.list, host(name))
	if i < 0 {
		i = len(w.names.list)
		w.names.list = append(w.names.list, host(name))
	}
	return netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})
}

// unnamed is an address that DNS never gave out.
func unnamed(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 7}), port)
}

// connect is a connection of the sandbox to dst.
func (w *world) connect(dst netip.AddrPort) *net.TCPConn {
	w.Helper()
	client, server := tcpPair(w)
	w.serving.Go(func() { w.proxy.ServeConn(server, dst) })
	w.Cleanup(func() { client.Close() })
	return client
}

func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	s := <-accepted
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// tls is a TLS connection of the sandbox: to the address that DNS gave for to, with that name as SNI unless another is given.
func (w *world) tls(to string, change ...func(*tls.Config)) *tls.Conn {
	w.Helper()
	return w.secure(w.connect(netip.AddrPortFrom(w.addressOf(to), 443)), to, change...)
}

func (w *world) secure(c net.Conn, name string, change ...func(*tls.Config)) *tls.Conn {
	w.Helper()
	conf := &tls.Config{ServerName: name, RootCAs: w.sessions.pool}
	for _, f := range change {
		f(conf)
	}
	t := tls.Client(c, conf)
	must(w, c.SetDeadline(time.Now().Add(patience)))
	if err := t.Handshake(); err != nil {
		w.Fatal("handshake:", err)
	}
	return t
}

func h2only(c *tls.Config) { c.NextProtos = []string{"h2"} }

// client is an HTTP client in the sandbox. Whatever a request's URL says, its connections are made for its host.
func (w *world) client(h2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!h2)
	p.SetHTTP2(h2)
	t := &http.Transport{
		Protocols: p, DisableCompression: true, MaxIdleConnsPerHost: 64,
		DialTLSContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			name, _, _ := net.SplitHostPort(addr)
			return w.secure(w.connect(netip.AddrPortFrom(w.addressOf(name), 443)), name, func(c *tls.Config) {
				if h2 {
					c.NextProtos = []string{"h2"}
				}
			}), nil
		},
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			name, _, _ := net.SplitHostPort(addr)
			return w.connect(netip.AddrPortFrom(w.addressOf(name), 80)), nil
		},
	}
	w.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// An answer is a response that was read whole.
type answer struct {
	*http.Response
	body string
}

func (a answer) reason() gate.Reason { return gate.Reason(a.Header.Get("X-Postern-Reason")) }

// ask sends raw bytes and reads one response.
func (w *world) ask(c net.Conn, raw string) answer {
	w.Helper()
	_, err := io.WriteString(c, raw)
	must(w, err)
	return w.read(bufio.NewReader(c), raw)
}

func (w *world) read(br *bufio.Reader, raw string) answer {
	w.Helper()
	method, _, _ := strings.Cut(raw, " ")
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		w.Fatalf("no answer to %.200q: %v", raw, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatalf("answer to %.200q: %v after %.200q", raw, err, b)
	}
	return answer{resp, string(b)}
}

func (w *world) do(c *http.Client, r *http.Request) answer {
	w.Helper()
	resp, err := c.Do(r)
	must(w, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(w, err)
	return answer{resp, string(b)}
}

// get is the head of a request without a body.
func get(path, host string, fields ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
}

// refused checks that an answer refuses for the reason, that it is the n-th record's reason, and that the sink saw nothing.
func (w *world) refused(a answer, why gate.Reason) {
	w.Helper()
	if a.reason() != why {
		w.Errorf("answered %d %q %q, want a refusal for %q", a.StatusCode, a.reason(), a.body, why)
	}
	w.recordedDenial(why)
}

// recordedDenial checks that there is one record more, a denial for the reason, and that the sink saw nothing more.
func (w *world) recordedDenial(why gate.Reason) *record.Record {
	w.Helper()
	r := w.log.next(w)
	if r.Kind != record.Decision || r.Verdict != "deny" || r.Reason != why {
		w.Errorf("recorded %+v, want a denial for %q", r, why)
	}
	if seen := w.sink.take(); len(seen) > 0 {
		w.Errorf("the sink saw %q", seen)
	}
	if more := w.log.rest(); len(more) > 0 {
		w.Errorf("recorded more: %+v", more)
	}
	return r
}

// passed checks that there is one decision more and its outcome, and returns what the sink saw and the outcome.
func (w *world) passed(a answer) (captured, *record.Record) {
	w.Helper()
	if a.reason() != gate.ReasonNone {
		w.Fatalf("refused: %d %s", a.StatusCode, a.body)
	}
	d, o := w.log.next(w), w.log.next(w)
	if d.Kind != record.Decision || d.Verdict != "allow" || d.Reason != gate.ReasonAllowed || d.Rule == "" {
		w.Errorf("recorded %+v, want an allowance", d)
	}
	if o.Kind != record.Outcome || o.Event != d.Event || o.Reason != gate.ReasonAllowed || o.Status != a.StatusCode {
		w.Errorf("recorded %+v, want the outcome of %+v", o, d)
	}
	seen := w.sink.take()
	if len(seen) != 1 {
		w.Fatalf("the sink saw %d requests: %q", len(seen), seen)
	}
	return seen[0], o
}

// recorder keeps the audit log.
type recorder struct {
	mu                     sync.Mutex
	records                []*record.Record
	read                   int
	changed                chan struct{}
	failCommit, failAppend atomic.Bool
}

var errDisk = errors.New("the disk is full")

func (l *recorder) Commit(ctx context.Context, r *record.Record) error {
	if l.failCommit.Load() {
		return errDisk
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.add(r)
}

func (l *recorder) Append(r *record.Record) error {
	if l.failAppend.Load() {
		return errDisk
	}
	return l.add(r)
}

func (l *recorder) add(r *record.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := *r
	if c.Kind == "" || c.Event.IsZero() || c.Session.IsZero() || strings.Contains(c.Path, "?") {
		panic(fmt.Sprintf("an incomplete record: %+v", c))
	}
	l.records = append(l.records, &c)
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return nil
}

// next waits for the next record that was not read yet.
func (l *recorder) next(t testing.TB) *record.Record {
	t.Helper()
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		if l.read < len(l.records) {
			r := l.records[l.read]
			l.read++
			l.mu.Unlock()
			return r
		}
		l.mu.Unlock()
		select {
		case <-l.changed:
		case <-timeout:
			t.Fatal("no record came")
		}
	}
}

// rest is what was not read yet.
func (l *recorder) rest() (rs []record.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; l.read < len(l.records); l.read++ {
		rs = append(rs, *l.records[l.read])
	}
	return rs
}

// authority is a root made for one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	must(t, err)
	a := &authority{key: key, pool: x509.NewCertPool()}
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) leaf(name string) (*tls.Certificate, error) {
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &a.key.PublicKey, a.key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}, err
}

// minter makes leaves and counts those that deliver refusals.
type minter struct {
	ca     *authority
	mu     sync.Mutex
	leaves map[gate.Host]*tls.Certificate
	budget int
}

func (m *minter) Leaf(h gate.Host) (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.leaves[h]; l != nil {
		return l, nil
	}
	l, err := m.ca.leaf(h.String())
	if m.leaves == nil {
		m.leaves = map[gate.Host]*tls.Certificate{}
	}
	m.leaves[h] = l
	return l, err
}

func (m *minter) RefusalLeaf(h gate.Host) (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget--; m.budget < 0 {
		return nil, errors.New("the budget is spent")
	}
	return m.ca.leaf(h.String())
}

func itoa(n int) string { return fmt.Sprintf("%d", n) }
func hex(n int) string  { return fmt.Sprintf("%x", n) }

// connectTo is a connection to the address that DNS gave for a name.
func (w *world) connectTo(name string, port uint16) *net.TCPConn {
	w.Helper()
	return w.connect(netip.AddrPortFrom(w.addressOf(name), port))
}
