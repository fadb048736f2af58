package testkit

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// OpenDoor is an HTTP proxy that lets everything through to the Net's servers: the same world without postern, for control arms and
// for testing the kit itself. Env is what clients on the host need to use it.
type OpenDoor struct {
	Addr string
	net  *Net
}

// NewOpenDoor starts the proxy; it ends with the test.
func (n *Net) NewOpenDoor(t T) *OpenDoor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	l = must(t, l, err)
	d := &OpenDoor{Addr: l.Addr().String(), net: n}
	srv := &http.Server{Handler: d, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return d
}

// Env points clients to the door and to the Net's root.
func (d *OpenDoor) Env() []string {
	ca, url := d.net.CAFile(), "http://"+d.Addr
	return []string{
		"https_proxy=" + url, "HTTPS_PROXY=" + url, "http_proxy=" + url, "SSL_CERT_FILE=" + ca, "CURL_CA_BUNDLE=" + ca, "GIT_SSL_CAINFO=" + ca,
		"NODE_EXTRA_CA_CERTS=" + ca, "REQUESTS_CA_BUNDLE=" + ca, "PIP_CERT=" + ca, "npm_config_cafile=" + ca,
	}
}

func (d *OpenDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := d.net.named(r.URL.Hostname())
	if s == nil {
		http.Error(w, "no such server: "+r.Host, http.StatusBadGateway)
		return
	}
	up, err := net.DialTimeout("tcp", s.Addr, 5*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	if r.Method == http.MethodConnect {
		_, err = io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n")
	} else {
		r.Close = true
		err = r.Write(up)
	}
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(up, buffered); _ = up.(*net.TCPConn).CloseWrite() })
	both.Go(func() { _, _ = io.Copy(down, up); _ = down.(*net.TCPConn).CloseWrite() })
	both.Wait()
}

func (n *Net) named(name string) *Server {
	for _, s := range n.Servers() {
		if s.Name == name {
			return s
		}
	}
	return nil
}
