package testkit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Request is what arrived at a server. It is logged when its head arrives; the body fields grow as the handler reads.
type Request struct {
	Server string // the name the server is known by
	Method string
	Host   string
	Target string // path and query as they arrived
	Proto  string
	Header http.Header
	SNI    string
	Remote string
	At     time.Time

	mu   sync.Mutex
	n    int64
	sum  hash.Hash
	head []byte // the first 256 KiB
}

// Body is the length, the SHA-256 in hex and the first 256 KiB of the body as far as it was read.
func (r *Request) Body() (n int64, sum string, head []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, hex.EncodeToString(r.sum.Sum(nil)), append([]byte(nil), r.head...)
}

// Text is the body as far as it was read and kept, decoded.
func (r *Request) Text(t T) string {
	t.Helper()
	_, _, head := r.Body()
	b, err := decoded(r.Header.Get("Content-Encoding"), bytes.NewReader(head))
	b = must(t, b, err)
	text, err := io.ReadAll(io.LimitReader(b, 32<<20))
	return string(must(t, text, err))
}

func (r *Request) took(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += int64(len(b))
	r.sum.Write(b)
	if room := 256<<10 - len(r.head); room > 0 {
		r.head = append(r.head, b[:min(room, len(b))]...)
	}
}

// Log is the sink: everything that arrived at any server of a Net, in order of arrival. It is safe for concurrent use.
type Log struct {
	mu       sync.Mutex
	requests []*Request
	changed  chan struct{}
}

func newLog() *Log { return &Log{changed: make(chan struct{})} }

func (l *Log) add(r *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
	close(l.changed)
	l.changed = make(chan struct{})
}

// All is everything that has arrived.
func (l *Log) All() []*Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Request(nil), l.requests...)
}

// To is what has arrived at one server.
func (l *Log) To(server string) []*Request {
	return l.Find(func(r *Request) bool { return r.Server == server })
}

// Find is what has arrived and satisfies want.
func (l *Log) Find(want func(*Request) bool) []*Request {
	var found []*Request
	for _, r := range l.All() {
		if want(r) {
			found = append(found, r)
		}
	}
	return found
}

// Holding is every request in whose head or body (the first 256 KiB) a nonce stands.
func (l *Log) Holding(nonce string) []*Request {
	return l.Find(func(r *Request) bool {
		if strings.Contains(r.Target, nonce) || strings.Contains(r.Host, nonce) || strings.Contains(r.SNI, nonce) {
			return true
		}
		for k, vs := range r.Header {
			if strings.Contains(k, nonce) || strings.Contains(strings.Join(vs, "\n"), nonce) {
				return true
			}
		}
		_, _, head := r.Body()
		return strings.Contains(string(head), nonce)
	})
}

// Wait returns when a request that satisfies want has arrived, or with the context's error.
func (l *Log) Wait(ctx context.Context, want func(*Request) bool) (*Request, error) {
	for {
		l.mu.Lock()
		changed := l.changed
		for _, r := range l.requests {
			if want(r) {
				l.mu.Unlock()
				return r, nil
			}
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// record logs the head of each request and what the handler reads of its body.
func (l *Log) record(server string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &Request{Server: server, Method: r.Method, Host: r.Host, Target: r.RequestURI, Proto: r.Proto, Header: r.Header.Clone(), Remote: r.RemoteAddr, At: time.Now(), sum: sha256.New()}
		if r.TLS != nil {
			e.SNI = r.TLS.ServerName
		}
		l.add(e)
		r.Body = &watchedBody{ReadCloser: r.Body, e: e}
		h.ServeHTTP(w, r)
	})
}

type watchedBody struct {
	io.ReadCloser
	e *Request
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.e.took(p[:n])
	return n, err
}
