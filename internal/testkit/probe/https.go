package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawTLS [flags] ADDR TEXT completes a handshake, with any server name or none, and sends bytes of any shape.
// Success is a finished handshake; data has the answer.
func rawTLS(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("tls", flag.ContinueOnError)
	sni := fs.String("sni", "", "server name; empty: none is sent")
	connect := fs.String("connect", "", "first a CONNECT for this authority")
	alpn := fs.String("alpn", "", "protocols, with commas")
	min12 := fs.Uint("max", tls.VersionTLS13, "highest TLS version, 769 to 772")
	wait := fs.Duration("wait", patience, "how long to read")
	if err := fs.Parse(args); err != nil || fs.NArg() != 2 {
		return usage("tls [flags] ADDR TEXT")
	}
	raw, err := net.DialTimeout("tcp", fs.Arg(0), patience)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(*wait + patience))
	data := map[string]any{}
	if *connect != "" {
		if reply, err := tunnel(raw, *connect); err != nil {
			data["connect"] = reply
			return data, err
		}
	}
	conf := &tls.Config{ServerName: *sni, InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: uint16(*min12)}
	if *alpn != "" {
		conf.NextProtos = strings.Split(*alpn, ",")
	}
	c := tls.Client(raw, conf)
	if err := c.Handshake(); err != nil {
		return data, err
	}
	st := c.ConnectionState()
	data["alpn"], data["names"], data["issuer"] = st.NegotiatedProtocol, st.PeerCertificates[0].DNSNames, st.PeerCertificates[0].Issuer.CommonName
	if _, err := io.WriteString(c, unescape(fs.Arg(1))); err != nil {
		data["write_error"] = err.Error()
	}
	_ = raw.SetReadDeadline(time.Now().Add(*wait))
	b, err := io.ReadAll(io.LimitReader(c, 64<<10))
	data["reply"] = string(b)
	if err != nil {
		data["read_error"] = err.Error()
	}
	return data, nil
}

func tunnel(c net.Conn, authority string) (string, error) {
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		return "", err
	}
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")) && len(head) < 8192; {
		if _, err := io.ReadFull(c, b); err != nil {
			return string(head), err
		}
		head = append(head, b[0])
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200")) {
		return string(head), errors.New("CONNECT was refused")
	}
	return string(head), nil
}

// headers is a repeatable -H "Name: value".
type headers []string

func (h *headers) String() string     { return strings.Join(*h, "; ") }
func (h *headers) Set(s string) error { *h = append(*h, s); return nil }

// request [flags] METHOD URL makes one request with the system's roots. Success is an answer of any status.
func request(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("http", flag.ContinueOnError)
	var hs headers
	fs.Var(&hs, "H", "a header, repeatable")
	body := fs.String("d", "", "body")
	at := fs.String("at", "", "connect to this address instead of the name's")
	version := fs.Int("v", 0, "1 or 2 allows only that version of HTTP")
	if err := fs.Parse(args); err != nil || fs.NArg() != 2 {
		return usage("http [flags] METHOD URL")
	}
	r, err := http.NewRequest(fs.Arg(0), fs.Arg(1), nil)
	if err != nil {
		return nil, err
	}
	if *body != "" {
		text := unescape(*body)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
	for _, h := range hs {
		name, value, _ := strings.Cut(h, ":")
		if strings.EqualFold(name, "Host") {
			r.Host = strings.TrimSpace(value)
			continue
		}
		r.Header[name] = append(r.Header[name], strings.TrimSpace(value))
	}
	start := time.Now()
	resp, err := client(*version, *at).Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	data := map[string]any{"status": resp.StatusCode, "proto": resp.Proto, "header": resp.Header, "body": string(b), "trailer": resp.Trailer, "ms": time.Since(start).Milliseconds()}
	return data, err
}

// client makes a client that follows no redirect and knows no proxy.
func client(version int, at string) *http.Client {
	t := &http.Transport{ForceAttemptHTTP2: version != 1, MaxIdleConnsPerHost: 64, DisableCompression: true}
	if version == 1 {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		t.TLSClientConfig = &tls.Config{NextProtos: []string{"http/1.1"}}
	}
	if at != "" {
		t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: patience}).DialContext(ctx, network, at)
		}
	}
	return &http.Client{Transport: t, Timeout: 5 * time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// rawH2 [flags] ADDR sends header blocks that no library would. Every -H is a field in order; "--" begins the next stream's.
// Success is an answer on each stream; data lists what each got.
func rawH2(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("h2", flag.ContinueOnError)
	sni := fs.String("sni", "", "server name")
	var hs headers
	fs.Var(&hs, "H", `a field, "name: value"; "---" begins the next stream`)
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return usage("h2 -sni NAME -H FIELD… ADDR")
	}
	raw, err := net.DialTimeout("tcp", fs.Arg(0), patience)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(2 * patience))
	c := tls.Client(raw, &tls.Config{ServerName: *sni, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	if got := c.ConnectionState().NegotiatedProtocol; got != "h2" {
		return nil, fmt.Errorf("the server chose %q", got)
	}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(); err != nil {
		return nil, err
	}
	streams := uint32(0)
	for _, fields := range strings.Split(strings.Join(hs, "\n"), "\n---\n") {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for line := range strings.SplitSeq(fields, "\n") {
			i := strings.Index(line, ": ")
			if i < 0 {
				return usage("h2: a field is name: value")
			}
			if err := e.WriteField(hpack.HeaderField{Name: line[:i], Value: unescape(line[i+2:])}); err != nil {
				return nil, err
			}
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*streams + 1, BlockFragment: b.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			return nil, err
		}
		streams++
	}
	return readStreams(f, streams)
}

func readStreams(f *http2.Framer, streams uint32) (map[string]any, error) {
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	got := map[string]any{}
	bodies := map[string]string{}
	for open := streams; open > 0; {
		frame, err := f.ReadFrame()
		if err != nil {
			return map[string]any{"streams": got, "bodies": bodies}, err
		}
		id := fmt.Sprint(frame.Header().StreamID)
		ended := false
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if s := frame.PseudoValue("status"); s != "" {
				got[id] = s
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			bodies[id] += string(frame.Data())
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			got[id], ended = frame.ErrCode.String(), true
		case *http2.GoAwayFrame:
			return map[string]any{"streams": got, "bodies": bodies, "goaway": frame.ErrCode.String()}, errors.New("GOAWAY")
		}
		if ended {
			open--
		}
	}
	return map[string]any{"streams": got, "bodies": bodies}, nil
}
