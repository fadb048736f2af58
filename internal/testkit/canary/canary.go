// Package canary finds secrets, and what is left of secrets, without holding them.
//
// A Set is made of the random part of each secret: every window of 12 bytes of the part itself and of its encodings (base64 in three
// alignments and both alphabets, hex in both cases, percent, UTF-16LE, reversed), each kept only as a rolling hash and a salted
// SHA-256. A Set can therefore be handed to a program inside the sandbox, which then searches its own memory without finding itself.
package canary

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Window is how many bytes in a row make a find. Twelve bytes of 62 letters and digits do not repeat by chance.
const Window = 12

const base = 0x9E3779B97F4A7C15 | 1 // of the rolling hash; odd, so that multiplication loses nothing

// A Set holds the hashes of what is searched for. It is safe for concurrent use once made.
type Set struct {
	Salt    []byte            `json:"salt"`
	Needles map[uint64]string `json:"needles"` // rolling hash → "NAME/ENCODING HASH"
	coarse  []uint64          // bit set over the top 20 bits of the rolling hash
}

// New makes a Set of the random parts of secrets, by name. Parts shorter than Window are refused: they could not be told from chance.
func New(salt []byte, parts map[string]string) (*Set, error) {
	s := &Set{Salt: salt, Needles: map[uint64]string{}}
	for name, part := range parts {
		if len(part) < Window {
			return nil, fmt.Errorf("%s: a random part of at least %d bytes is needed", name, Window)
		}
		for encoding, text := range spellings(part) {
			for i := 0; i+Window <= len(text); i++ {
				w := []byte(text[i : i+Window])
				s.Needles[roll(w)] = name + "/" + encoding + " " + s.sum(w)
			}
		}
	}
	s.index()
	return s, nil
}

// spellings are the encodings of a secret that are searched for, each without the edges that depend on what stands beside it.
func spellings(part string) map[string]string {
	b := []byte(part)
	reversed := slices.Clone(b)
	slices.Reverse(reversed)
	var percent, wide strings.Builder
	for _, c := range b {
		fmt.Fprintf(&percent, "%%%02X", c)
		wide.WriteByte(c)
		wide.WriteByte(0)
	}
	out := map[string]string{
		"raw": part, "reversed": string(reversed), "percent": percent.String(), "utf-16": wide.String(),
		"hex": hex.EncodeToString(b), "HEX": strings.ToUpper(hex.EncodeToString(b)),
	}
	for offset := range 3 {
		padded := append(make([]byte, offset), b...)
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			text := enc.EncodeToString(padded)
			if offset > 0 {
				text = text[offset+1:] // letters that mix in the bytes before
			}
			if len(padded)%3 != 0 {
				text = text[:len(text)-1] // a letter that mixes in the bytes after
			}
			out[fmt.Sprintf("%s+%d", name, offset)] = text
		}
	}
	return out
}

func (s *Set) index() {
	s.coarse = make([]uint64, 1<<14)
	for h := range s.Needles {
		s.coarse[h>>50] |= 1 << (h >> 44 & 63)
	}
}

func (s *Set) sum(w []byte) string {
	h := sha256.Sum256(append(slices.Clone(s.Salt), w...))
	return hex.EncodeToString(h[:8])
}

func roll(w []byte) uint64 {
	var h uint64
	for _, c := range w {
		h = h*base + uint64(c) + 1
	}
	return h
}

// Marshal spells the Set for a program inside the sandbox.
func (s *Set) Marshal() ([]byte, error) { return json.Marshal(s) }

// Unmarshal reads what Marshal wrote.
func Unmarshal(b []byte) (*Set, error) {
	s := &Set{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, err
	}
	if len(s.Needles) == 0 {
		return nil, errors.New("a set without needles finds nothing")
	}
	s.index()
	return s, nil
}

// Scan reads r to its end and names what it found: "anthropic/base64+1 at 1204". It stops after 8 finds.
func (s *Set) Scan(r io.Reader) ([]string, error) {
	var top uint64 = 1 // base to the power of Window
	for range Window {
		top *= base
	}
	in := bufio.NewReaderSize(r, 256<<10)
	var ring [Window]byte
	var found []string
	var h uint64
	for n := 0; ; n++ {
		c, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		h = h*base + uint64(c) + 1
		if n >= Window {
			h -= top * (uint64(ring[n%Window]) + 1)
		}
		ring[n%Window] = c
		if n < Window-1 || s.coarse[h>>50]>>(h>>44&63)&1 == 0 {
			continue
		}
		if name := s.confirm(h, ring, n); name != "" {
			if found = append(found, fmt.Sprintf("%s at %d", name, n-Window+1)); len(found) == 8 {
				return found, nil
			}
		}
	}
}

func (s *Set) confirm(h uint64, ring [Window]byte, n int) string {
	needle, ok := s.Needles[h]
	if !ok {
		return ""
	}
	w := make([]byte, 0, Window)
	for i := range Window {
		w = append(w, ring[(n+1+i)%Window])
	}
	name, sum, _ := strings.Cut(needle, " ")
	if sum != s.sum(w) {
		return ""
	}
	return name
}
