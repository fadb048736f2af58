package record

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// mark ends a text that was longer than its field's limit.
const mark = "…"

const hexDigits = "0123456789abcdef"

// plain reports whether an ASCII byte stands for itself in a line.
func plain(c byte) bool {
	return c >= ' ' && c < 0x7f && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

// visible reports whether a rune may reach a terminal as it is. Everything without a glyph of its own is not: C0, DEL and C1 controls,
// bidirectional and zero-width format characters, line and paragraph separators, odd spaces, private use, unassigned, variation selectors.
func visible(r rune) bool {
	return strconv.IsPrint(r) && !(r >= 0xfe00 && r <= 0xfe0f) && !(r >= 0xe0100 && r <= 0xe01ef)
}

// appendEscaped writes s as the inside of a JSON string of visible characters. A byte that is not UTF-8 becomes the text \xNN, so a backslash becomes
// two: every string has one spelling, no two strings share one, and any JSON parser reads it.
func appendEscaped(dst []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		if plain(s[i]) {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r >= utf8.RuneSelf && visible(r) && !(r == utf8.RuneError && size == 1) {
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, '\\', '\\', 'x', hexDigits[s[i]>>4], hexDigits[s[i]&15])
		case r == '"':
			dst = append(dst, '\\', '"')
		case r == '\\':
			dst = append(dst, `\\\\`...)
		case r > 0xffff:
			r -= 0x10000
			dst = appendUnit(dst, 0xd800+r>>10)
			dst = appendUnit(dst, 0xdc00+r&0x3ff)
		default:
			dst = appendUnit(dst, r)
		}
		i += size
		start = i
	}
	return append(dst, s[start:]...)
}

func appendUnit(dst []byte, u rune) []byte {
	return append(dst, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// Escape makes any string safe for one line of a terminal: what has no glyph of its own, and each byte that is not UTF-8, is written as Go
// writes it in a string literal, and so is the backslash. A string without any of these is returned as it is.
func Escape(s string) string {
	ok := true
	for i := 0; i < len(s) && ok; i++ {
		ok = s[i] >= ' ' && s[i] < 0x7f && s[i] != '\\'
	}
	if ok {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < ' ', r == 0x7f:
			b.WriteString(`\x`)
			b.WriteByte(hexDigits[s[i]>>4])
			b.WriteByte(hexDigits[s[i]&15])
		case r == '\\':
			b.WriteString(`\\`)
		case visible(r):
			b.WriteString(s[i : i+size])
		case r > 0xffff:
			b.WriteString(`\U`)
			for shift := 28; shift >= 0; shift -= 4 {
				b.WriteByte(hexDigits[r>>shift&15])
			}
		default:
			b.WriteString(`\u`)
			for shift := 12; shift >= 0; shift -= 4 {
				b.WriteByte(hexDigits[r>>shift&15])
			}
		}
		i += size
	}
	return b.String()
}

// clip shortens s to at most limit bytes, ending it with the mark when something was cut.
func clip(s string, limit int) (kept string, cut bool) {
	if len(s) <= limit {
		return s, false
	}
	n := limit - len(mark)
	for back := 0; back < utf8.UTFMax-1 && n > 0 && !utf8.RuneStart(s[n]); back++ {
		n--
	}
	return s[:n], true
}
