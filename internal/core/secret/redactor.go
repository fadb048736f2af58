package secret

import (
	"io"
	"runtime"
	"sync"
)

// Redactor overwrites secrets in bytes that pass through it with as many '*', so that lengths and framing stay true.
//
// It knows each secret raw, in UTF-16 of either byte order, in hex of either case, and in base64 of both alphabets wherever the secret begins within the encoded text
// (the characters that the secret alone determines: RFC 4648 §4 and §5). Each of these is also found with any of its bytes
// percent-encoded (RFC 3986 §2.1, and '+' for a space) or JSON-escaped (RFC 8259 §7), in any mixture. Where matches overlap,
// everything that any of them covers is overwritten.
//
// The nil and the zero Redactor know no secret and pass everything through. A Redactor is immutable and safe for concurrent use.
type Redactor struct {
	mu    sync.RWMutex // held for reading while needles are read; for writing by Wipe
	wiped bool
	ix    *index // nil: no secrets
}

// NewRedactor compiles the values' patterns. Zero and wiped values, and values shorter than MinLen, are left out: whoever loads a
// credential refuses those.
func NewRedactor(vs ...Value) *Redactor {
	var needles [][]byte
	for _, v := range vs {
		// The only error is ErrWiped: a wiped value has nothing to look for.
		_ = v.Use(func(b []byte) error {
			if len(b) >= MinLen {
				needles = append(needles, spellings(b)...)
			}
			return nil
		})
	}
	r := &Redactor{ix: compile(needles)}
	if r.ix != nil {
		runtime.AddCleanup(r, func(ix *index) { ix.wipe() }, r.ix)
	}
	return r
}

// IsZero reports whether r knows no secret, so that everything passes through untouched.
func (r *Redactor) IsZero() bool { return r == nil || r.ix == nil }

// Wipe zeroes the patterns once no chunk is being searched. From then on everything that passes is overwritten, and readers fail with ErrWiped.
func (r *Redactor) Wipe() {
	if r.IsZero() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wiped = true
	r.ix.wipe()
}

// Found reports whether a secret stands in b in any spelling. It allocates nothing when none does.
func (r *Redactor) Found(b []byte) bool {
	if r.IsZero() {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.wiped {
		return true
	}
	return len(r.ix.search(b, 0, nil)) > 0
}

// Bytes is b with secrets overwritten, and how many runs were. It never changes b; when nothing was found it returns b itself.
func (r *Redactor) Bytes(b []byte) (masked []byte, n int) {
	if len(b) == 0 || !r.Found(b) {
		return b, 0
	}
	s := r.Stream()
	masked = s.Flush(s.Write(make([]byte, 0, len(b)), b))
	return masked, int(s.Hits())
}

// String is s with secrets overwritten.
func (r *Redactor) String(s string) string {
	if out, n := r.Bytes([]byte(s)); n > 0 {
		return string(out)
	}
	return s
}

// Stream redacts one stream of bytes that comes in pieces. It is not safe for concurrent use.
type Stream struct {
	r      *Redactor
	held   []byte // raw bytes that may be the beginning of a match
	starts []int  // where in held one may begin, ascending; the first is 0
	spans  []span // what matches cover of held
	inRun  bool   // the last byte released was overwritten
	hits   int64
	closed bool // the redactor was wiped
}

// Stream begins a stream.
func (r *Redactor) Stream() *Stream { return &Stream{r: r} }

// Hits is the number of runs overwritten so far. Adjacent secrets are one run.
func (s *Stream) Hits() int64 { return s.hits }

// Write takes p and appends to dst what can be released: everything but the longest suffix that may be the beginning of a secret.
func (s *Stream) Write(dst, p []byte) []byte { return s.push(dst, p, false) }

// Flush appends to dst what was held back, at the end of the stream.
func (s *Stream) Flush(dst []byte) []byte { return s.push(dst, nil, true) }

func (s *Stream) push(dst, p []byte, last bool) []byte {
	if s.r.IsZero() {
		return append(dst, p...)
	}
	start := len(dst)
	dst = append(append(dst, s.held...), p...)
	n := s.process(dst[start:], last)
	return dst[:start+n]
}

// process redacts b, which begins with the held bytes, in place. It returns how many bytes may be released; the rest of b is
// taken into held and zeroed.
//
// Held bytes are not searched again: a match that begins in them begins at one of starts.
func (s *Stream) process(b []byte, last bool) int {
	s.r.mu.RLock()
	starts := s.starts[:0]
	if s.r.wiped {
		s.closed, s.spans = true, append(s.spans[:0], span{0, len(b)})
	} else {
		alive := false
		for _, at := range s.starts {
			if s.spans, alive = s.r.ix.try(b, at, s.spans); alive && !last {
				starts = append(starts, at)
			}
		}
		s.spans = s.r.ix.search(b, len(s.held), s.spans)
		if !last {
			starts = s.r.ix.begun(b, len(s.held), starts)
		}
	}
	s.r.mu.RUnlock()
	n := len(b)
	if len(starts) > 0 {
		n = starts[0]
	}
	s.mask(b, n)
	for i := range starts {
		starts[i] -= n
	}
	s.starts = starts
	clear(s.held)
	s.held = append(s.held[:0], b[n:]...)
	clear(b[n:])
	return n
}

// mask overwrites what the spans cover of b[:n], counts the runs, and keeps of the spans what lies beyond n.
func (s *Stream) mask(b []byte, n int) {
	spans, inRun := merge(s.spans), n == 0 && s.inRun
	s.spans = s.spans[:0]
	for _, x := range spans {
		if x.start < n {
			if !(x.start == 0 && s.inRun) {
				s.hits++
			}
			inRun = inRun || x.end >= n
			run := b[x.start:min(x.end, n)]
			for i := range run {
				run[i] = '*'
			}
		}
		if x.end > n {
			s.spans = append(s.spans, span{max(0, x.start-n), x.end - n})
		}
	}
	s.inRun = inRun
}

// Reader redacts what it reads from another reader. Read returns as soon as the source has given a byte that can be released.
type Reader struct {
	src   io.ReadCloser
	s     *Stream
	own   []byte // for a p too small to work in
	ready []byte // part of own that can be released
	err   error  // the source's, after everything was released
}

// Reader wraps src. Closing the Reader closes src. It works in the caller's buffer, which is best 32 KiB or more; the memory of
// its own is bounded by six times the longest pattern and 4 KiB.
func (r *Redactor) Reader(src io.ReadCloser) *Reader { return &Reader{src: src, s: r.Stream()} }

// Hits is the number of runs overwritten so far. It is called by whoever reads.
func (x *Reader) Hits() int64 { return x.s.hits }

// Close closes the source.
func (x *Reader) Close() error { return x.src.Close() }

const (
	minRoom   = 512  // in the caller's buffer beyond what is held, to work in it
	ownRoom   = 4096 // in our own otherwise
	maxEmpty  = 100  // reads of nothing before the source is called stuck
	gramBytes = 4
)

// Read is io.Reader's.
func (x *Reader) Read(p []byte) (int, error) {
	if x.s.r.IsZero() {
		return x.src.Read(p)
	}
	for empty := 0; ; {
		if len(x.ready) > 0 {
			n := copy(p, x.ready)
			x.ready = x.ready[n:]
			return n, nil
		}
		if x.err != nil || len(p) == 0 {
			return 0, x.err
		}
		h, small := len(x.s.held), false
		b := p
		if len(p) < h+minRoom {
			if cap(x.own) < h+ownRoom {
				x.own = make([]byte, 2*h+ownRoom)
			}
			b, small = x.own[:cap(x.own)], true
		}
		n, err := x.src.Read(b[copy(b, x.s.held):])
		if n == 0 && err == nil {
			if empty++; empty == maxEmpty {
				return 0, io.ErrNoProgress
			}
			continue
		}
		n = x.s.process(b[:h+n], err != nil)
		if x.err = err; x.s.closed {
			x.err = ErrWiped
			n = 0
		}
		if small {
			x.ready = b[:n]
		} else if n > 0 {
			return n, nil
		}
	}
}
