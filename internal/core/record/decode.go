package record

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"postern/internal/core/gate"
)

// Stored is a record as the log holds it.
type Stored struct {
	Record
	Meta
	Hash Hash // as the line states it; Sum says what it ought to be
}

// SyntaxError says why a line is not one that the encoder writes.
type SyntaxError struct {
	Offset int    // byte offset in the line
	Detail string // never contains the line
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("audit line: %s at byte %d", e.Detail, e.Offset)
}

// Parse reads one line without its newline. It accepts exactly what AppendJSON writes: the same keys in the same order and the same
// spelling of every value, at most MaxLine bytes. Whether the hash is right is for the caller to compare with Sum.
func Parse(line []byte) (Stored, error) {
	d := decoder{line: line}
	var s Stored
	r := &s.Record
	d.begin(&s.Meta)
	r.Kind = Kind(d.text(`,"kind":`))
	r.Event = id(&d, `,"event":`, gate.ParseEventID)
	r.Session = id(&d, `,"session":`, gate.ParseSessionID)
	r.Verdict = d.text(`,"verdict":`)
	r.Reason = gate.Reason(d.text(`,"reason":`))
	r.Rule = d.text(`,"rule":`)
	r.Action = d.text(`,"action":`)
	r.Scheme = d.text(`,"scheme":`)
	r.Host = d.text(`,"host":`)
	r.Port = uint16(d.number(`,"port":`))
	r.Method = d.text(`,"method":`)
	r.Path = d.text(`,"path":`)
	r.Git = d.text(`,"git":`)
	r.Repo = d.text(`,"repo":`)
	r.Credential = d.text(`,"credential":`)
	r.Receipt = d.text(`,"receipt":`)
	r.Detail = d.text(`,"detail":`)
	r.Status = int(d.number(`,"status":`))
	r.BytesIn = d.number(`,"bytes_in":`)
	r.BytesOut = d.number(`,"bytes_out":`)
	r.Duration = time.Duration(d.number(`,"duration_ns":`))
	r.Count = d.number(`,"count":`)
	s.Hash = d.end(&s.Meta)
	if d.err != nil {
		return Stored{}, d.err
	}
	if again, _ := AppendJSON(make([]byte, 0, len(line)), r, s.Meta); !sameButHash(again, line) {
		return Stored{}, &SyntaxError{0, "not in the one form that the log writes"}
	}
	return s, nil
}

func sameButHash(a, b []byte) bool {
	return len(a) == len(b) && bytes.Equal(a[:len(a)-hashLen], b[:len(b)-hashLen])
}

// decoder walks a line once. After the first error every method returns a zero value.
type decoder struct {
	line []byte
	at   int
	err  error
}

func (d *decoder) fail(detail string) {
	if d.err == nil {
		d.err = &SyntaxError{d.at, detail}
	}
}

// skip consumes a literal when it is next.
func (d *decoder) skip(literal string) bool {
	if d.err != nil || len(d.line)-d.at < len(literal) || string(d.line[d.at:d.at+len(literal)]) != literal {
		return false
	}
	d.at += len(literal)
	return true
}

func (d *decoder) want(literal, otherwise string) {
	if !d.skip(literal) {
		d.fail(otherwise)
	}
}

func (d *decoder) begin(m *Meta) {
	if len(d.line) > MaxLine {
		d.fail("longer than a line can be")
		return
	}
	d.want(`{"v":`, "not an audit record")
	if v := d.digits(); d.err == nil && v != strconv.Itoa(Version) {
		d.fail("a version that this postern does not read")
	}
	d.want(`,"seq":`, "no sequence number")
	seq, err := strconv.ParseUint(d.digits(), 10, 64)
	if err != nil {
		d.fail("a malformed sequence number")
	}
	m.Seq = seq
	d.want(`,"time":`, "no time")
	if m.Time, err = time.Parse(timeLayout, d.quoted()); err != nil {
		d.fail("a malformed time")
	}
}

func (d *decoder) end(m *Meta) Hash {
	d.want(`,"prev":`, "an unknown, repeated or misplaced field")
	m.Prev = d.hash()
	d.want(`,"hash":`, "no hash")
	h := d.hash()
	d.want(`}`, "no end of the record")
	if d.err == nil && d.at != len(d.line) {
		d.fail("bytes behind the record")
	}
	return h
}

// text is the value of key when it is next, "" when it is not.
func (d *decoder) text(key string) string {
	if !d.skip(key) {
		return ""
	}
	return d.quoted()
}

// number is the value of key when it is next, 0 when it is not.
func (d *decoder) number(key string) int64 {
	if !d.skip(key) {
		return 0
	}
	sign := ""
	if d.skip("-") {
		sign = "-"
	}
	n, err := strconv.ParseInt(sign+d.digits(), 10, 64)
	if err != nil {
		d.fail("a malformed number")
	}
	return n
}

func id[T any](d *decoder, key string, parse func(string) (T, error)) T {
	var none T
	s := d.text(key)
	if s == "" {
		return none
	}
	v, err := parse(s)
	if err != nil {
		d.fail("a malformed id")
		return none
	}
	return v
}

func (d *decoder) digits() string {
	start := d.at
	for d.err == nil && d.at < len(d.line) && d.line[d.at] >= '0' && d.line[d.at] <= '9' {
		d.at++
	}
	return string(d.line[start:d.at])
}

func (d *decoder) hash() (h Hash) {
	s := d.quoted()
	if n, err := hex.Decode(h[:], []byte(s[:min(len(s), 2*len(h))])); err != nil || n != len(h) || len(s) != 2*len(h) {
		d.fail("a malformed hash")
	}
	return h
}

// quoted reads a string with the escapes that appendEscaped writes.
func (d *decoder) quoted() string {
	d.want(`"`, "no string")
	if d.err != nil {
		return ""
	}
	rest := d.line[d.at:]
	end := bytes.IndexAny(rest, `"\`)
	if end >= 0 && rest[end] == '"' {
		d.at += end + 1
		return string(rest[:end])
	}
	var out []byte
	for d.err == nil {
		rest = d.line[d.at:]
		i := bytes.IndexAny(rest, `"\`)
		if i < 0 {
			d.fail("an unfinished string")
			break
		}
		out = append(out, rest[:i]...)
		d.at += i
		if rest[i] == '"' {
			d.at++
			return string(out)
		}
		out = d.escape(out)
	}
	return ""
}

func (d *decoder) escape(out []byte) []byte {
	switch {
	case d.skip(`\"`):
		return append(out, '"')
	case d.skip(`\\\\`):
		return append(out, '\\')
	case d.skip(`\\x`):
		return append(out, byte(d.hex(2)))
	case d.skip(`\u`):
		r := d.hex(4)
		if utf16.IsSurrogate(r) && d.skip(`\u`) {
			r = utf16.DecodeRune(r, d.hex(4))
		}
		return utf8.AppendRune(out, r)
	}
	d.fail("an unknown escape")
	return out
}

func (d *decoder) hex(n int) rune {
	if len(d.line)-d.at < n {
		d.fail("an unfinished escape")
		return 0
	}
	v, err := strconv.ParseUint(string(d.line[d.at:d.at+n]), 16, 32)
	if err != nil {
		d.fail("a malformed escape")
	}
	d.at += n
	return rune(v)
}
