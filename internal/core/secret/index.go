package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
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

	intros  string           // the bytes that begin an escape here
	second  [3][256]bool     // for each intro, the bytes that can follow it in an escape of a needle's character
	byByte  [256][]origin    // by the byte that an escape stands for
	pairs   *[1 << 10]uint64 // bitmap over the first two bytes of every spelling
	letters [256]letter      // what a byte can be in a spelling
}

// origin is a place in a needle, with the byte before it.
type origin struct {
	needle, offset int32
	before         byte // meaningless at offset 0
}

// letter is what a byte can be in a spelling.
type letter uint8

const (
	stranger letter = iota // in none
	plain
	intro // the first of an escape, and perhaps plain
)

// maxWindow bounds the tables: a longer window would not be searched faster.
const maxWindow = 48

// spellings lists the forms of a secret that are searched for, without escapes.
func spellings(secret []byte) [][]byte {
	lower := []byte(hex.EncodeToString(secret))
	list := [][]byte{bytes.Clone(secret), lower, bytes.ToUpper(lower)}
	if wide := utf16.Encode([]rune(string(secret))); utf8.Valid(secret) {
		defer clear(wide)
		big, little := make([]byte, 0, 2*len(wide)), make([]byte, 0, 2*len(wide))
		for _, u := range wide {
			big, little = binary.BigEndian.AppendUint16(big, u), binary.LittleEndian.AppendUint16(little, u)
		}
		list = append(list, big, little)
	}
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
	ix := &index{needles: needles, groups: map[uint32][]origin{}, pairs: new([1 << 10]uint64), intros: `%\`}
	window := maxWindow
	for _, n := range needles {
		window = min(window, len(n))
		ix.maxRaw = max(ix.maxRaw, len(n))
		if bytes.IndexByte(n, ' ') >= 0 {
			ix.intros = `%\+`
		}
	}
	for _, c := range []byte(hexDigits + upperHex + "u" + shortNames) {
		ix.letters[c] = plain
	}
	for _, c := range []byte(ix.intros) {
		ix.letters[c] = intro
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
			ix.groups[h] = append(ix.groups[h], origin{needle: int32(i), offset: int32(k)})
		}
		for k, c := range n {
			ix.byByte[c] = append(ix.byByte[c], origin{int32(i), int32(k), n[max(0, k-1)]})
			ix.follow(c)
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
	clear(ix.letters[:])
}

// search appends to spans the matches that lie in b[from:].
func (ix *index) search(b []byte, from int, spans []span) []span {
	for at := from; at+gramBytes <= len(b); at += ix.step {
		h := binary.LittleEndian.Uint32(b[at:]) * 0x9E3779B1 >> ix.shift
		if ix.filter[h/64]>>(h%64)&1 != 0 {
			spans = ix.verify(b, from, at, h, spans)
		}
	}
	for i := range len(ix.intros) {
		for at := from; ; at++ {
			k := bytes.IndexByte(b[at:], ix.intros[i])
			if k < 0 {
				break
			}
			at += k
			if at+1 == len(b) || ix.second[i][b[at+1]] {
				spans = ix.escaped(b, from, at, spans)
			}
		}
	}
	return spans
}

func (ix *index) verify(b []byte, from, at int, h uint32, spans []span) []span {
	for _, o := range ix.groups[h] {
		start, n := at-int(o.offset), ix.needles[o.needle]
		if start >= from && start+len(n) <= len(b) && bytes.Equal(b[start:start+len(n)], n) {
			spans = add(spans, span{start, start + len(n)})
		}
	}
	return spans
}

// escaped finds the matches from b[from] on whose first escape is at b[at].
func (ix *index) escaped(b []byte, from, at int, spans []span) []span {
	c, ok := leads(b[at:])
	if !ok {
		return spans
	}
	for _, o := range ix.byByte[c] {
		start := at - int(o.offset)
		if start < from || o.offset > 0 && b[at-1] != o.before {
			continue
		}
		n := ix.needles[o.needle]
		if !bytes.Equal(b[start:at], n[:o.offset]) {
			continue
		}
		if size, _ := match(n, b[start:]); size > 0 {
			spans = add(spans, span{start, start + size})
		}
	}
	return spans
}

// begun appends to starts the offsets from b[from] on at which a match may begin that needs bytes beyond b.
func (ix *index) begun(b []byte, from int, starts []int) []int {
	for at := ix.tail(b, from); at < len(b); at++ {
		if at+1 < len(b) {
			if k := uint(b[at])<<8 | uint(b[at+1]); ix.pairs[k/64]>>(k%64)&1 == 0 {
				continue
			}
		}
		if _, more := ix.try(b, at, nil); more {
			starts = append(starts, at)
		}
	}
	return starts
}

// tail is the offset, at least from, before which no match can begin that reaches to the end of b: all bytes from there on can be part
// of a match, and escapes are never further apart than the longest needle.
func (ix *index) tail(b []byte, from int) int {
	since := 0 // the last escape, going backwards
	for at := len(b); at > from; at-- {
		switch ix.letters[b[at-1]] {
		case stranger:
			return at
		case intro:
			since = 0
		default:
			since++
		}
		if since >= ix.maxRaw || len(b)-at >= ix.maxLong {
			return at
		}
	}
	return from
}

// try appends to spans the longest match that begins at b[start], and reports whether one may that needs bytes beyond b.
func (ix *index) try(b []byte, start int, spans []span) ([]span, bool) {
	alive := false
	for _, n := range ix.needles {
		if n[0] != b[start] && ix.letters[b[start]] != intro {
			continue
		}
		size, more := match(n, b[start:])
		if size > 0 {
			spans = add(spans, span{start, start + size})
		}
		alive = alive || more
	}
	return spans, alive
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

// follow enters what can come second in an escape of c.
func (ix *index) follow(c byte) {
	ix.letters[c] = max(ix.letters[c], plain)
	percent, slash, plus := &ix.second[0], &ix.second[1], &ix.second[2]
	percent[hexDigits[c>>4]], percent[upperHex[c>>4]] = true, true
	slash['u'] = true
	if k := strings.IndexByte(shortBytes, c); k >= 0 {
		slash[shortNames[k]] = true
	}
	if c == ' ' {
		for i := range plus {
			plus[i] = true
		}
	}
}

// begin enters the first two bytes of every spelling of n: a quick test before matching.
func (ix *index) begin(n []byte) {
	pair := func(a, b byte) {
		k := uint(a)<<8 | uint(b)
		ix.pairs[k/64] |= 1 << (k % 64)
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
	pair('%', hexDigits[n[0]>>4])
	pair('%', upperHex[n[0]>>4])
	pair('\\', 'u')
	if k := strings.IndexByte(shortBytes, n[0]); k >= 0 {
		pair('\\', shortNames[k])
	}
}
