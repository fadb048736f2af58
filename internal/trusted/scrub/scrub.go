// Package scrub takes credentials out of what an upstream answers: header, body, trailer, WebSocket and gRPC messages, whatever the coding.
//
// It reads what strangers on the internet send and holds no credential: of one it knows a Redactor. Everything streams; memory is bounded
// by the decoders' windows (8 MiB for zstd, 16 MiB for brotli, which are never asked for) and a few buffers of 64 KiB.
package scrub

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/secret"
)

// Response masks in an answer what red knows: in its header, its body, its trailer, and the stream of a 101. Nothing is delayed but bytes
// that may be the beginning of a match, and those of WebSocket and gRPC only until their message ends.
//
// A body that came compressed is delivered uncompressed. What cannot be searched is refused with ReasonOpaqueEncoding. On an error, a
// *gate.Failure, the answer's body has been closed.
func Response(resp *http.Response, red *secret.Redactor) error {
	if red.IsZero() {
		return nil
	}
	resp.Status = red.String(resp.Status)
	Header(resp.Header, red)
	body, err := scrubBody(resp, red)
	if err != nil {
		_ = resp.Body.Close()
		return err
	}
	resp.Body = body
	return nil
}

func scrubBody(resp *http.Response, red *secret.Redactor) (io.ReadCloser, error) {
	h := resp.Header
	if resp.StatusCode == http.StatusSwitchingProtocols {
		rwc, ok := resp.Body.(io.ReadWriteCloser)
		switch {
		case !ok:
			return nil, &gate.Failure{Reason: gate.ReasonUpstream, Detail: "an upgrade without a connection"}
		case h.Get("Sec-Websocket-Extensions") != "":
			return nil, opaque("a WebSocket extension")
		case strings.EqualFold(h.Get("Upgrade"), "websocket"):
			return &duplex{newFramed(rwc, red, &webSocket{}), rwc}, nil
		}
		return &duplex{red.Reader(rwc), rwc}, nil
	}
	if resp.Body == nil || resp.Body == http.NoBody {
		return resp.Body, nil
	}
	for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
		if v := h.Get(name); v != "" && v != "identity" {
			return nil, opaque("compressed messages")
		}
	}
	src := resp.Body
	if bodied(resp) {
		coding, err := contentCoding(h["Content-Encoding"])
		if err != nil {
			return nil, err
		}
		if coding != "" {
			if resp.StatusCode == http.StatusPartialContent {
				return nil, opaque("a part of a compressed body")
			}
			src = newInflated(src, coding)
			uncompressed(resp)
		}
	}
	if prefixed(h.Get("Content-Type")) {
		return &scrubbed{newFramed(src, red, &envelopes{}), resp, red}, nil
	}
	return &scrubbed{red.Reader(src), resp, red}, nil
}

// bodied reports whether an answer can have a body (RFC 9110 §6.4.1).
func bodied(resp *http.Response) bool {
	head := resp.Request != nil && resp.Request.Method == http.MethodHead
	return !head && resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusNotModified
}

// uncompressed makes the header true of a body that is delivered uncompressed.
func uncompressed(resp *http.Response) {
	resp.ContentLength = -1
	for _, name := range []string{"Content-Encoding", "Content-Length", "Content-Md5", "Digest", "Content-Digest", "Accept-Ranges"} {
		resp.Header.Del(name)
	}
	if tag := resp.Header.Get("Etag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		resp.Header.Set("Etag", "W/"+tag) // the same thing, but no longer the same bytes (RFC 9110 §8.8.1)
	}
}

func opaque(what string) error {
	return &gate.Failure{Reason: gate.ReasonOpaqueEncoding, Detail: what}
}

// Header masks the values of a header or trailer in place, and drops fields whose name holds a secret.
func Header(h http.Header, red *secret.Redactor) {
	if red.IsZero() || len(h) == 0 {
		return
	}
	// Almost always there is nothing: one search over everything is cheaper than one for each value. No pattern spans a newline.
	size := 0
	for k, vs := range h {
		size += len(k) + 1
		for _, v := range vs {
			size += len(v) + 1
		}
	}
	all := make([]byte, 0, size)
	for k, vs := range h {
		all = append(append(all, k...), '\n')
		for _, v := range vs {
			all = append(append(all, v...), '\n')
		}
	}
	if _, n := red.Bytes(all); n == 0 {
		return
	}
	for k, vs := range h {
		if red.String(k) != k {
			delete(h, k)
			continue
		}
		for i, v := range vs {
			vs[i] = red.String(v)
		}
	}
}

// scrubbed is an answer's body. Its trailer is masked when it has arrived, which is before the body's end is told.
type scrubbed struct {
	io.ReadCloser
	resp *http.Response
	red  *secret.Redactor
}

func (b *scrubbed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		Header(b.resp.Trailer, b.red)
		err = failure(err)
	}
	return n, err
}

// duplex is the connection of a 101, scrubbed where it is read.
type duplex struct {
	io.ReadCloser
	w io.Writer
}

func (d *duplex) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	return n, failure(err)
}

func (d *duplex) Write(p []byte) (int, error) { return d.w.Write(p) }

// CloseWrite half-closes where the connection can.
func (d *duplex) CloseWrite() error {
	if c, ok := d.w.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

func failure(err error) error {
	var f *gate.Failure
	if err == nil || err == io.EOF || errors.As(err, &f) {
		return err
	}
	return &gate.Failure{Reason: gate.ReasonUpstream, Err: err}
}
