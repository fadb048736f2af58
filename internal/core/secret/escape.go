package secret

import (
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	hexDigits  = "0123456789abcdef"
	upperHex   = "0123456789ABCDEF"
	shortNames = `"\/bfnrt'`        // the letter after '\': RFC 8259 §7, and JavaScript's \'
	shortBytes = "\"\\/\b\f\n\r\t'" // what it stands for
)

// match matches needle at the beginning of in, where any of its characters may be escaped. It returns the length of the longest match,
// zero when there is none, and whether a match (or a longer one) may need bytes beyond in.
//
// A needle that holds '%' or '\' itself can be read in more than one way, so all ways are followed side by side: ends is the
// set of offsets at which what was matched so far may end, ascending and almost always of one element.
func match(needle, in []byte) (size int, more bool) {
	var space [2][8]int
	ends, next := append(space[0][:0], 0), space[1][:0]
	for i := 0; ; {
		if len(ends) == 1 { // the common case: bytes that have one reading
			at := ends[0]
			for i < len(needle) && at < len(in) && needle[i] == in[at] && needle[i] < utf8.RuneSelf && needle[i] != '%' && needle[i] != '\\' {
				i, at = i+1, at+1
			}
			ends[0] = at
		}
		if i == len(needle) {
			return ends[len(ends)-1], more
		}
		r, width := utf8.DecodeRune(needle[i:])
		if r == utf8.RuneError && width == 1 {
			r = -1 // not UTF-8: no JSON escape stands for it
		}
		next = next[:0]
		for _, at := range ends {
			plain, escaped, short := readChar(needle[i:i+width], r, in[at:])
			more = more || short
			if plain > 0 {
				next = insert(next, at+plain)
			}
			if escaped > 0 {
				next = insert(next, at+escaped)
			}
		}
		if len(next) == 0 {
			return 0, more
		}
		ends, next = next, ends
		i += width
	}
}

// insert adds n to an ascending set.
func insert(set []int, n int) []int {
	if k, found := slices.BinarySearch(set, n); !found {
		return slices.Insert(set, k, n)
	}
	return set
}

// readChar reads one character of a needle, whose rune is r, from the beginning of in: as its bytes, each raw or percent-encoded, and,
// where that is another reading, as an escape. Lengths are zero when it does not stand there; more says that it may, with further bytes.
func readChar(char []byte, r rune, in []byte) (plain, escaped int, more bool) {
	if len(in) == 0 {
		return 0, 0, true
	}
	plain, more = readBytes(char, in)
	short := false
	switch {
	case in[0] == '\\':
		escaped, short = readBackslash(char, r, in)
	case in[0] == '%' && char[0] == '%':
		escaped, short = readPercent('%', in)
	}
	return plain, escaped, more || short
}

func readBytes(char, in []byte) (n int, more bool) {
	if char[0] == ' ' && in[0] == '+' {
		return 1, false
	}
	for _, c := range char {
		switch {
		case n == len(in):
			return 0, true
		case in[n] == c:
			n++
		case in[n] == '%':
			k, more := readPercent(c, in[n:])
			if k == 0 {
				return 0, more
			}
			n += k
		default:
			return 0, false
		}
	}
	return n, false
}

// readPercent reads c from in, which begins with '%'.
func readPercent(c byte, in []byte) (n int, more bool) {
	return readLike([]byte{'%', hexDigits[c>>4], hexDigits[c&15]}, in)
}

// readBackslash reads the character from in, which begins with '\'.
func readBackslash(char []byte, r rune, in []byte) (n int, more bool) {
	if r < 0 {
		return 0, false
	}
	if len(in) == 1 {
		return 0, true
	}
	if in[1] != 'u' {
		if k := strings.IndexByte(shortNames, in[1]); k >= 0 && len(char) == 1 && char[0] == shortBytes[k] {
			return 2, false
		}
		return 0, false
	}
	var space [12]byte
	form := space[:0]
	if hi, lo := utf16.EncodeRune(r); r > 0xffff {
		form = appendUnit(appendUnit(form, hi), lo)
	} else {
		form = appendUnit(form, r)
	}
	return readLike(form, in)
}

func appendUnit(b []byte, u rune) []byte {
	return append(b, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// readLike reads form, whose letters a to f stand for either case.
func readLike(form, in []byte) (n int, more bool) {
	for i, c := range form {
		if i == len(in) {
			return 0, true
		}
		if in[i] != c && !(c >= 'a' && c <= 'f' && in[i] == c-'a'+'A') {
			return 0, false
		}
	}
	return len(form), false
}

// leads is the first byte of the character that the escape at the beginning of in stands for; false when it is none or is cut off.
func leads(in []byte) (c byte, ok bool) {
	switch {
	case in[0] == '+':
		return ' ', true
	case in[0] == '%' && len(in) >= 3:
		v, ok := unhex(in[1:3])
		return byte(v), ok
	case in[0] == '\\' && len(in) >= 2 && in[1] != 'u':
		if k := strings.IndexByte(shortNames, in[1]); k >= 0 {
			return shortBytes[k], true
		}
	case in[0] == '\\' && len(in) >= 6:
		v, ok := unhex(in[2:6])
		if v >= 0xd800 && v < 0xdc00 { // the first half of a pair already tells the first byte
			v = 0x10000 + (v-0xd800)<<10
		}
		var b [utf8.UTFMax]byte
		utf8.EncodeRune(b[:], v)
		return b[0], ok
	}
	return 0, false
}

func unhex(in []byte) (v rune, ok bool) {
	for _, c := range in {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			v = v<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v, true
}
