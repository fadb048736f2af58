package testkit

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Net is a small internet: one root, servers under real names, one Log.
type Net struct {
	CA  *CA
	Log *Log

	t       T
	dir     string
	caFile  string
	mu      sync.Mutex
	servers []*Server
}

// NewNet makes an internet without servers. It ends with the test.
func NewNet(t T) *Net {
	t.Helper()
	n := &Net{CA: NewCA(t), Log: newLog(), t: t, dir: dir(t, "net")}
	n.caFile = filepath.Join(n.dir, "root.pem")
	if err := os.WriteFile(n.caFile, n.CA.PEM, 0o644); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return n
}

// CAFile is the root in PEM, readable by every user.
func (n *Net) CAFile() string { return n.caFile }

// Servers lists what was started, in order.
func (n *Net) Servers() []*Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.servers)
}

// Server is one host of the internet.
type Server struct {
	Name  string // the DNS name it is known by
	Addr  string // 127.0.0.1:PORT
	Plain bool   // no TLS
	net   *Net
}

// Requests is what has arrived at this server.
func (s *Server) Requests() []*Request { return s.net.Log.To(s.Name) }

// Client talks to the server as the host would, without postern: the control arm of an attack.
func (s *Server) Client() *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: s.net.CA.Pool(), MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: true, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, s.Addr)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// OnlyHTTP1 is a change for ServeWith: the server does not offer h2.
func OnlyHTTP1(s *http.Server) {
	s.TLSConfig.NextProtos = []string{"http/1.1"}
	s.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
}

// Serve starts an HTTPS server (HTTP/1.1 and HTTP/2) under a real name with a leaf of the Net's root.
func (n *Net) Serve(name string, h http.Handler) *Server {
	n.t.Helper()
	return n.ServeWith(name, h, func(*http.Server) {})
}

// ServeWith is Serve with a change to the server before it starts: another certificate, fewer protocols.
func (n *Net) ServeWith(name string, h http.Handler, change func(*http.Server)) *Server {
	n.t.Helper()
	srv := n.server(name, h)
	srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{n.CA.Leaf(n.t, nil, name)}, MinVersion: tls.VersionTLS12}
	change(srv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	l = must(n.t, l, err)
	return n.start(name, srv, l, func() error { return srv.ServeTLS(l, "", "") })
}

// ServePlain starts a server without TLS.
func (n *Net) ServePlain(name string, h http.Handler) *Server {
	n.t.Helper()
	srv := n.server(name, h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	l = must(n.t, l, err)
	s := n.start(name, srv, l, func() error { return srv.Serve(l) })
	s.Plain = true
	return s
}

func (n *Net) server(name string, h http.Handler) *http.Server {
	return &http.Server{Handler: n.Log.record(name, h), ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
}

func (n *Net) start(name string, srv *http.Server, l net.Listener, serve func() error) *Server {
	done := make(chan struct{})
	go func() { defer close(done); _ = serve() }()
	n.t.Cleanup(func() { _ = srv.Close(); <-done })
	s := &Server{Name: name, Addr: l.Addr().String(), net: n}
	n.mu.Lock()
	n.servers = append(n.servers, s)
	n.mu.Unlock()
	return s
}

// Upstreams spells the servers for postern.yaml, each under its name with its address and the Net's root.
func (n *Net) Upstreams() string {
	var b strings.Builder
	for _, s := range n.Servers() {
		b.WriteString("  " + s.Name + ": {address: \"" + s.Addr + "\"")
		if !s.Plain {
			b.WriteString(", ca: " + n.caFile)
		}
		b.WriteString("}\n")
	}
	if b.Len() == 0 {
		return ""
	}
	return "upstreams:\n" + b.String()
}
