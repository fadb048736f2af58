package scrub

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"postern/internal/core/gate"
)

const (
	maxRatio  = 100     // of what a body expands to; counted once it is larger than ratioFrom
	ratioFrom = 1 << 20 // bytes
	maxBody   = 4 << 30 // bytes a compressed body may expand to
	maxWindow = 8 << 20 // bytes of memory for one zstd body (RFC 9659)
)

// contentCoding is the one coding of a body, "" for none. Two codings on top of each other, and codings that we cannot undo, are refused.
func contentCoding(values []string) (string, error) {
	found := ""
	for _, v := range values {
		for c := range strings.SplitSeq(v, ",") {
			c = strings.ToLower(strings.TrimSpace(c))
			switch c {
			case "", "identity":
				continue
			case "x-gzip":
				c = "gzip"
			case "gzip", "deflate", "br", "zstd":
			default:
				return "", opaque("an unknown content coding")
			}
			if found != "" {
				return "", opaque("more than one content coding")
			}
			found = c
		}
	}
	return found, nil
}

// inflated is a compressed body, uncompressed as it is read: what has arrived is delivered without waiting for more, wherever
// the coding allows that.
type inflated struct {
	src    io.ReadCloser
	coding string
	dec    io.Reader // nil: nothing was read yet
	zstd   *zstd.Decoder
	in     int64
	out    int64
	err    error
}

func newInflated(src io.ReadCloser, coding string) *inflated {
	return &inflated{src: src, coding: coding}
}

// compressed is the source with its bytes counted.
type compressed struct{ x *inflated }

func (c compressed) Read(p []byte) (int, error) {
	n, err := c.x.src.Read(p)
	c.x.in += int64(n)
	return n, err
}

func (x *inflated) open() error {
	src := bufio.NewReader(compressed{x}) // an io.ByteReader, so that no decoder reads ahead by its own buffer
	first, err := src.Peek(1)
	if len(first) == 0 {
		return err // an empty body has no coding
	}
	switch x.coding {
	case "gzip":
		x.dec, err = gzip.NewReader(src)
	case "deflate":
		x.dec, err = openDeflate(src)
	case "br":
		x.dec, err = brotli.NewReader(src), nil
	case "zstd":
		// One goroutine: ours. More would read ahead and outlive the request.
		x.zstd, err = zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		x.dec = x.zstd
	}
	return err
}

// openDeflate tells zlib's format (RFC 1950), which "deflate" means, from the bare one (RFC 1951), which some servers send.
func openDeflate(src *bufio.Reader) (io.Reader, error) {
	head, err := src.Peek(2)
	if len(head) < 2 {
		return nil, err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(src)
	}
	return flate.NewReader(src), nil
}

func (x *inflated) Read(p []byte) (int, error) {
	if x.err != nil || len(p) == 0 {
		return 0, x.err
	}
	if x.dec == nil {
		if x.err = x.broken(x.open()); x.err != nil {
			return 0, x.err
		}
	}
	n, err := x.dec.Read(p)
	x.out += int64(n)
	if x.out > maxBody || x.out > ratioFrom && x.out/maxRatio > x.in {
		n, err = 0, opaque("a body that expands too far")
	}
	x.err = x.broken(err)
	return n, x.err
}

// broken keeps what the source failed with and names the rest: a decoder's error may quote what it read.
func (x *inflated) broken(err error) error {
	var f *gate.Failure
	if err == nil || err == io.EOF || errors.As(err, &f) {
		return err
	}
	return &gate.Failure{Reason: gate.ReasonUpstream, Detail: "the compressed body is damaged", Err: err}
}

// Close ends the decoder and closes the source.
func (x *inflated) Close() error {
	x.err = io.ErrClosedPipe
	if x.zstd != nil {
		x.zstd.Close()
	}
	return x.src.Close()
}
