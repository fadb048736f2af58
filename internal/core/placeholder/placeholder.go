// Package placeholder makes what a sandbox is given in place of a credential: random text of the real one's prefix, length and alphabet,
// so that clients which check a key's form accept it.
//
// Every placeholder carries a mark in its random part, and behind it a tag that only marks have:
//
//	sk-ant-api03- postern0 RRRR TTTT rrrrrrrr…
//	prefix        mark     |    |    more random characters
//	                       |    four characters computed from RRRR
//	                       four random characters
//
// so a placeholder is known as one in whatever session it turns up, and the word "postern" in ordinary text is not.
// A mark proves nothing and protects nothing: who forges one has his request refused.
package placeholder

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	markLen   = 8
	randomLen = 4
	tagLen    = 4
	sealLen   = markLen + randomLen + tagLen // the fewest characters of a group that carries the mark

	// MaxLen is the longest placeholder in bytes.
	MaxLen = 4096

	randomPerChar = 2 // two bytes a character keep the bias of a remainder below one in a thousand
)

// alphabet is what the characters of a group are taken from.
type alphabet struct {
	name  string
	chars string
	mark  string // markLen of chars
	tags  string // the chars a tag is spelled in
}

const (
	digit = "0123456789"
	lower = "abcdefghijklmnopqrstuvwxyz"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

	wordMark  = "postern0"
	upperMark = "POSTERN2"
	hexMark   = "90573e12"
)

func alphabets() []alphabet {
	return []alphabet{
		{"alnum", upper + lower + digit, wordMark, lower + digit},
		{"lower", lower + digit, wordMark, lower + digit},
		{"base64", upper + lower + digit + "+/", wordMark, lower + digit},
		{"base64url", upper + lower + digit + "-_", wordMark, lower + digit},
		{"base32", upper + "234567", upperMark, upper + "234567"},
		{"hex", digit + "abcdef", hexMark, digit + "abcdef"},
	}
}

// Shape says what placeholders look like. The zero Shape makes none. Shapes are immutable.
type Shape struct {
	parts []part
}

// part is literal text, or n random characters.
type part struct {
	text  string
	alpha alphabet
	n     int
	seal  bool // begins with mark, random and tag
}

// ParseShape reads a shape such as "sk-ant-api03-{base64url:95}": visible ASCII in which
//
//	{ALPHABET:N}  stands for N random characters; alphabets are alnum, lower (a–z0–9), base64, base64url, base32 and hex
//	{jwt}         stands for a JSON web token: a header, a payload that expires in 2100, and a random signature
//	{jwt:JSON}    is one with that object as its payload
//
// The first group of 16 characters or more carries the mark; a shape without one is refused.
func ParseShape(s string) (Shape, error) {
	var sh Shape
	sealed, size := false, 0
	for rest := s; rest != ""; {
		p, n, err := nextPart(rest)
		if err != nil {
			return Shape{}, fmt.Errorf("placeholder shape: %w at byte %d", err, len(s)-len(rest))
		}
		if p.n >= sealLen && !sealed {
			p.seal, sealed = true, true
		}
		if size += len(p.text) + p.n; size > MaxLen {
			return Shape{}, errors.New("placeholder shape: longer than 4096 characters")
		}
		sh.parts, rest = append(sh.parts, p), rest[n:]
	}
	if !sealed {
		return Shape{}, errors.New("placeholder shape: needs a random group of at least 16 characters, such as {alnum:36}")
	}
	return sh, nil
}

// nextPart reads the part at the beginning of s, and how many bytes of s it takes.
func nextPart(s string) (part, int, error) {
	if s[0] == '}' {
		return part{}, 0, errors.New(`a "}" without "{"`)
	}
	if s[0] != '{' {
		n := strings.IndexAny(s, "{}")
		if n < 0 {
			n = len(s)
		}
		for i := range n {
			if s[i] <= ' ' || s[i] > '~' {
				return part{}, 0, errors.New("a character that is not visible ASCII")
			}
		}
		return part{text: s[:n]}, n, nil
	}
	if strings.HasPrefix(s, "{jwt}") || strings.HasPrefix(s, "{jwt:") {
		return jwtPart(s)
	}
	body, _, ok := strings.Cut(s[1:], "}")
	if !ok {
		return part{}, 0, errors.New(`a "{" without "}"`)
	}
	name, count, _ := strings.Cut(body, ":")
	for _, a := range alphabets() {
		if a.name != name {
			continue
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > MaxLen {
			return part{}, 0, errors.New("a group needs a number of characters, such as {" + a.name + ":36}")
		}
		return part{alpha: a, n: n}, len(body) + 2, nil
	}
	return part{}, 0, errors.New("no such group: there are alnum, lower, base64, base64url, base32, hex and jwt")
}

const (
	jwtHeader    = `{"alg":"HS256","typ":"JWT"}`
	jwtPayload   = `{"exp":4102444800,"sub":"sandbox"}`
	jwtSignature = 43 // base64url characters of 32 bytes
)

// jwtPart is one part: header and payload as its text, the signature as its random characters.
func jwtPart(s string) (part, int, error) {
	payload, n := json.RawMessage(jwtPayload), len("{jwt}")
	if after, ok := strings.CutPrefix(s, "{jwt:"); ok {
		d := json.NewDecoder(strings.NewReader(after))
		if err := d.Decode(&payload); err != nil || payload[0] != '{' {
			return part{}, 0, errors.New("{jwt:…} needs a JSON object")
		}
		end := int(d.InputOffset())
		if end >= len(after) || after[end] != '}' {
			return part{}, 0, errors.New(`a "{" without "}"`)
		}
		n = len("{jwt:") + end + 1
	}
	enc := base64.RawURLEncoding.EncodeToString
	text := enc([]byte(jwtHeader)) + "." + enc(payload) + "."
	for _, a := range alphabets() {
		if a.name == "base64url" {
			return part{text: text, alpha: a, n: jwtSignature}, n, nil
		}
	}
	return part{}, 0, errors.New("no base64url alphabet")
}

// IsZero reports whether the shape makes nothing.
func (s Shape) IsZero() bool { return len(s.parts) == 0 }

// Random is how many random bytes Make needs.
func (s Shape) Random() int {
	n := 0
	for _, p := range s.parts {
		n += p.n * randomPerChar
	}
	return n
}

// Make spells a placeholder from random bytes, of which it needs Random. Equal bytes make equal placeholders.
func (s Shape) Make(random []byte) (string, error) {
	if s.IsZero() {
		return "", errors.New("placeholder: the zero shape makes none")
	}
	if len(random) < s.Random() {
		return "", fmt.Errorf("placeholder: needs %d random bytes, got %d", s.Random(), len(random))
	}
	var b strings.Builder
	for _, p := range s.parts {
		b.WriteString(p.text)
		group := make([]byte, p.n)
		for i := range group {
			group[i] = p.alpha.chars[int(binary.BigEndian.Uint16(random))%len(p.alpha.chars)]
			random = random[randomPerChar:]
		}
		if p.seal {
			copy(group, p.alpha.mark)
			copy(group[markLen+randomLen:], tag(string(group[markLen:markLen+randomLen]), p.alpha.tags))
		}
		b.Write(group)
	}
	return b.String(), nil
}

// tag spells what follows the random characters of a seal.
func tag(random, chars string) string {
	sum := sha256.Sum256([]byte("postern placeholder " + random))
	var t [tagLen]byte
	for i := range t {
		t[i] = chars[int(binary.BigEndian.Uint16(sum[2*i:]))%len(chars)]
	}
	return string(t[:])
}
