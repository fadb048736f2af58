package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// span is a half-open range of bytes that a match covers.
type span struct{ start, end int }

// index finds needles in a buffer.
//
// Plain occurrences: every needle has at least window bytes, so of its last window bytes any grid of step window-3 hits one group
// of four. Only those groups of the buffer are looked at, through a small filter; the probes do not depend on each other, which
// is what makes this faster than a skip search, and its work does not grow on input that almost matches.
//
// Escaped occurrences: the first escape in one is found by its '%', '\' or '+', and what it stands for says where a needle may begin.
type index struct {
	needles [][]byte
	maxRaw  int // longest needle
	maxLong int // longest needle with every byte escaped

	step   int
	shift  uint                // of the group hash
	filter []uint64            // bitmap over group hashes
	groups map[uint32][]origin // by group hash

	intros string // the bytes that begin an escape here
	byByte [256][]origin
	pairs  *[1 << 16 / 64]uint64 // first two bytes of every spelling
	firsts [256]bool             // first byte of every spelling
}

// origin is a place in a needle.
type origin struct{ needle, offset int32 }

// maxWindow bounds the tables: a longer window would not be searched faster.
const maxWindow = 48

// spellings lists the forms of a secret that are searched for, without escapes.
func spellings(secret []byte) [][]byte {
	lower := []byte(hex.EncodeToString(secret))
	list := [][]byte{bytes.Clone(secret), lower, bytes.ToUpper(lower)}
	for before := range 3 {
		padded := append(make([]byte, before), secret...)
		// A character of base64 holds six bits; only those wholly inside the secret's bits are known.
		from, to := (before*8+5)/6, len(padded)*8/6
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := make([]byte, enc.EncodedLen(len(padded)))
			enc.Encode(text, padded)
			list = append(list, text[from:to])
		}
		clear(padded)
	}
	return list
}

// compile builds the index, nil when there is nothing to look for.
func compile(needles [][]byte) *index {
	slices.SortFunc(needles, bytes.Compare)
	needles = slices.CompactFunc(needles, bytes.Equal)
	if len(needles) == 0 {
		return nil
	}
	ix := &index{needles: needles, groups: map[uint32][]origin{}, pairs: new([1 << 16 / 64]uint64), intros: `%\`}
	window := maxWindow
	for _, n := range needles {
		window = min(window, len(n))
		ix.maxRaw = max(ix.maxRaw, len(n))
		if bytes.IndexByte(n, ' ') >= 0 {
			ix.intros = `%\+`
		}
	}
	ix.maxLong = 6 * ix.maxRaw // \u0041
	ix.step = window - gramBytes + 1
	bits := uint(12)
	for bits < 20 && 1<<bits < 64*len(needles)*ix.step {
		bits++
	}
	ix.shift = 32 - bits
	ix.filter = make([]uint64, 1<<bits/64)
	for i, n := range needles {
		for k := len(n) - window; k+gramBytes <= len(n); k++ {
			h := ix.hash(binary.LittleEndian.Uint32(n[k:]))
			ix.filter[h/64] |= 1 << (h % 64)
			ix.groups[h] = append(ix.groups[h], origin{int32(i), int32(k)})
		}
		for k, c := range n {
			ix.byByte[c] = append(ix.byByte[c], origin{int32(i), int32(k)})
		}
		ix.begin(n)
	}
	return ix
}

func (ix *index) hash(group uint32) uint32 { return group * 0x9E3779B1 >> ix.shift }

func (ix *index) wipe() {
	for _, n := range ix.needles {
		clear(n)
	}
	clear(ix.filter)
	clear(ix.groups)
	clear(ix.pairs[:])
	clear(ix.byByte[:])
	clear(ix.firsts[:])
}

// search appends the spans of all matches in b to spans, and returns the offset of the last byte that begins an escape (-1: none).
func (ix *index) search(b []byte, spans []span) ([]span, int) {
	for at := 0; at+gramBytes <= len(b); at += ix.step {
		h := binary.LittleEndian.Uint32(b[at:]) * 0x9E3779B1 >> ix.shift
		if ix.filter[h/64]>>(h%64)&1 != 0 {
			spans = ix.verify(b, at, h, spans)
		}
	}
	last := -1
	for i := range len(ix.intros) {
		intro := ix.intros[i]
		for at := 0; ; at++ {
			k := bytes.IndexByte(b[at:], intro)
			if k < 0 {
				break
			}
			at += k
			last = max(last, at)
			spans = ix.escaped(b, at, spans)
		}
	}
	return spans, last
}

func (ix *index) verify(b []byte, at int, h uint32, spans []span) []span {
	for _, o := range ix.groups[h] {
		start, n := at-int(o.offset), ix.needles[o.needle]
		if start >= 0 && start+len(n) <= len(b) && bytes.Equal(b[start:start+len(n)], n) {
			spans = add(spans, span{start, start + len(n)})
		}
	}
	return spans
}

// escaped finds the matches whose first escape is at b[at].
func (ix *index) escaped(b []byte, at int, spans []span) []span {
	c, ok := leads(b[at:])
	if !ok {
		return spans
	}
	for _, o := range ix.byByte[c] {
		start, n := at-int(o.offset), ix.needles[o.needle]
		if start < 0 || !bytes.Equal(b[start:at], n[:o.offset]) {
			continue
		}
		if size, _ := match(n, b[start:]); size > 0 {
			spans = add(spans, span{start, start + size})
		}
	}
	return spans
}

// alive is the offset of the first byte of b at which a match may begin that needs bytes beyond b; len(b) when there is none.
// lastEscape is the offset of the last byte that begins an escape.
func (ix *index) alive(b []byte, lastEscape int) int {
	from := max(0, len(b)-ix.maxLong+1)
	if lastEscape < from {
		from = max(0, len(b)-ix.maxRaw+1)
	}
	for at := from; at+1 < len(b); at++ {
		if k := uint(b[at])<<8 | uint(b[at+1]); ix.pairs[k/64]>>(k%64)&1 != 0 && ix.pending(b[at:]) {
			return at
		}
	}
	if n := len(b); n > 0 && ix.firsts[b[n-1]] && ix.pending(b[n-1:]) {
		return n - 1
	}
	return len(b)
}

func (ix *index) pending(b []byte) bool {
	for _, n := range ix.needles {
		if _, more := match(n, b); more {
			return true
		}
	}
	return false
}

// add appends x, or widens the last span when they touch, so that dense matches cost no memory.
func add(spans []span, x span) []span {
	if k := len(spans) - 1; k >= 0 && x.start <= spans[k].end && spans[k].start <= x.end {
		spans[k].start, spans[k].end = min(spans[k].start, x.start), max(spans[k].end, x.end)
		return spans
	}
	return append(spans, x)
}

// merge sorts spans and joins those that touch, in place.
func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	out := spans[:1]
	for _, x := range spans[1:] {
		out = add(out, x)
	}
	return out
}

// begin enters the first two bytes of every spelling of n: a quick test that alive makes before it matches.
func (ix *index) begin(n []byte) {
	pair := func(a, b byte) {
		k := uint(a)<<8 | uint(b)
		ix.pairs[k/64] |= 1 << (k % 64)
		ix.firsts[a] = true
	}
	after := []byte{n[1], '%', '\\'}
	if n[1] == ' ' {
		after = append(after, '+')
	}
	for _, b := range after {
		pair(n[0], b)
		if n[0] == ' ' {
			pair('+', b)
		}
	}
	hi := hexDigits[n[0]>>4]
	pair('%', hi)
	pair('%', bytes.ToUpper([]byte{hi})[0])
	pair('\\', 'u')
	for i := range len(shortBytes) {
		if shortBytes[i] == n[0] {
			pair('\\', shortNames[i])
		}
	}
}
