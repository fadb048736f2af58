package placeholder

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/secret"
)

// marks lists each mark with the characters its tags are spelled in.
func marks() [3][2]string {
	return [3][2]string{
		{wordMark, lower + digit},
		{upperMark, upper + "234567"},
		{hexMark, digit + "abcdef"},
	}
}

// Marked reports whether a placeholder of any session stands in s as it is, not encoded.
func Marked(s string) bool {
	for _, m := range marks() {
		for rest := s; ; {
			i := strings.Index(rest, m[0])
			if i < 0 {
				break
			}
			if rest = rest[i:]; sealed(rest, m[1]) {
				return true
			}
			rest = rest[1:]
		}
	}
	return false
}

// sealed reports whether s, which begins with a mark, goes on with the tag of its random characters.
func sealed(s, tags string) bool {
	return len(s) >= sealLen && s[markLen+randomLen:sealLen] == tag(s[markLen:markLen+randomLen], tags)
}

// Set is a session's placeholders. It is built by Add, and then safe for concurrent use as long as nothing is added.
// The zero Set is empty: it finds nothing, and still knows other sessions' placeholders.
type Set struct {
	entries []entry
	own     *secret.Redactor // finds the entries in every encoding
	hint    *secret.Redactor // finds the entries and the marks: most text holds neither
}

type entry struct {
	name  gate.CredentialName
	value string
}

// Add makes value stand for the credential. A name may have several placeholders; a placeholder stands for one name.
func (s *Set) Add(name gate.CredentialName, value string) error {
	if name.IsZero() {
		return errors.New("placeholder: needs a credential's name")
	}
	if len(value) < sealLen || len(value) > MaxLen {
		return errors.New("placeholder: needs 16 to 4096 characters")
	}
	if !Marked(value) {
		return errors.New("placeholder: carries no mark")
	}
	if _, ok := s.Find(value); ok {
		return errors.New("placeholder: is in the set already")
	}
	s.entries = append(s.entries, entry{name, value})
	var values []secret.Value
	for _, e := range s.entries {
		values = append(values, secret.New("placeholder", []byte(e.value)))
	}
	s.own = secret.NewRedactor(values...)
	for _, m := range marks() {
		values = append(values, secret.New("mark", []byte(m[0])))
	}
	s.hint = secret.NewRedactor(values...)
	return nil
}

// Find is the credential that a placeholder stands for. Each comparison takes a time that depends on the lengths alone.
func (s *Set) Find(value string) (gate.CredentialName, bool) {
	name, found := gate.CredentialName{}, false
	for _, e := range s.entries {
		if subtle.ConstantTimeCompare([]byte(e.value), []byte(value)) == 1 {
			name, found = e.name, true
		}
	}
	return name, found
}

// Len is the number of placeholders.
func (s *Set) Len() int { return len(s.entries) }

// In reports whether a placeholder of this set, or a marked one of any session, stands anywhere in text: as it is, percent-encoded
// once, or in base64 of either alphabet at any alignment; one of this set also JSON-escaped and in hex.
func (s *Set) In(text string) bool {
	if b := []byte(text); !s.hint.IsZero() && !s.hint.Found(b) {
		return false
	} else if s.own.Found(b) || markedAnywhere(text) {
		return true
	}
	decoded, changed := unescape(text)
	return changed && markedAnywhere(decoded)
}

func markedAnywhere(text string) bool { return Marked(text) || markedBase64(text) }

// markedBase64 looks for the characters that a mark alone determines in base64, and decodes what stands around them.
func markedBase64(text string) bool {
	if len(text) < sealLen*4/3 {
		return false // as most header values are
	}
	if strings.ContainsAny(text, "-_") {
		text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	}
	for _, m := range marks() {
		for before := range 3 {
			from, to := (before*8+5)/6, (before+markLen)*8/6
			known := base64.RawStdEncoding.EncodeToString([]byte("\x00\x00"[:before] + m[0]))[from:to]
			for at := 0; ; at++ {
				i := strings.Index(text[at:], known)
				if i < 0 {
					break
				}
				at += i
				if d := decodeAround(text, at-from); len(d) > before && sealed(d[before:], m[1]) {
					return true
				}
			}
		}
	}
	return false
}

// decodeAround decodes the quanta of base64 from offset start on, as far as a seal can reach. Characters before the text count as zero bits.
func decodeAround(text string, start int) string {
	const quanta = 4 * ((2 + sealLen + 2) / 3)
	piece := text[max(start, 0):min(len(text), start+quanta)]
	if start < 0 {
		piece = strings.Repeat("A", -start) + piece
	}
	if end := strings.IndexFunc(piece, notBase64); end >= 0 {
		piece = piece[:end]
	}
	if len(piece)%4 == 1 {
		piece = piece[:len(piece)-1]
	}
	d, err := base64.RawStdEncoding.DecodeString(piece)
	if err != nil {
		return ""
	}
	return string(d)
}

func notBase64(r rune) bool {
	return !(r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '+' || r == '/')
}

// unescape decodes percent-encodings once and leaves malformed ones as they are.
func unescape(s string) (decoded string, changed bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, false
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if hi, lo := unhex(s[i+1]), unhex(s[i+2]); hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b), true
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
