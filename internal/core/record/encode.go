package record

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// The limits of text fields, in bytes before escaping. A longer text is cut and ends with "…".
const (
	MaxWord   = 64   // kind, verdict, reason, action, scheme, method, git, receipt
	MaxName   = 64   // credential
	MaxRule   = 256  // rule
	MaxHost   = 256  // host
	MaxPath   = 1024 // path
	MaxRepo   = 1280 // repo: a host and a path
	MaxDetail = 512  // detail

	// MaxLine is the longest line in bytes, without its newline: every field at its limit, every byte escaped.
	MaxLine = 32 << 10
)

// Hash is SHA-256 over a line up to its "hash" field: everything that the line says, and the hash of the line before it.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Meta is what the log adds to a record when it stores it.
type Meta struct {
	Seq  uint64    // 1 for the first record of a session
	Time time.Time // written in UTC to the nanosecond; a year outside 1 to 9999 is written as the Unix epoch
	Prev Hash      // hash of the line before
}

// timeLayout is RFC 3339 with a fixed width, so that lines sort by it.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// AppendJSON appends one whole line without its newline, and returns its hash. Fields stand in a fixed order; an empty text and a zero
// number are left out. A path is cut before its query and a host after its userinfo, should a caller ever pass them. It allocates nothing
// when dst has room.
func AppendJSON(dst []byte, r *Record, m Meta) ([]byte, Hash) {
	start := len(dst)
	b := appendStart(dst, m)
	b = text(b, `,"kind":`, string(r.Kind), MaxWord)
	b = text(b, `,"event":`, r.Event.String(), MaxWord)
	b = text(b, `,"session":`, r.Session.String(), MaxWord)
	b = text(b, `,"verdict":`, r.Verdict, MaxWord)
	b = text(b, `,"reason":`, string(r.Reason), MaxWord)
	b = text(b, `,"rule":`, r.Rule, MaxRule)
	b = text(b, `,"action":`, r.Action, MaxWord)
	b = text(b, `,"scheme":`, r.Scheme, MaxWord)
	b = host(b, r.Host)
	b = number(b, `,"port":`, int64(r.Port))
	b = text(b, `,"method":`, r.Method, MaxWord)
	b = text(b, `,"path":`, withoutQuery(r.Path), MaxPath)
	b = text(b, `,"git":`, r.Git, MaxWord)
	b = text(b, `,"repo":`, r.Repo, MaxRepo)
	b = text(b, `,"credential":`, r.Credential, MaxName)
	b = text(b, `,"receipt":`, r.Receipt, MaxWord)
	b = text(b, `,"detail":`, r.Detail, MaxDetail)
	b = number(b, `,"status":`, int64(r.Status))
	b = number(b, `,"bytes_in":`, r.BytesIn)
	b = number(b, `,"bytes_out":`, r.BytesOut)
	b = number(b, `,"duration_ns":`, int64(r.Duration))
	b = number(b, `,"count":`, r.Count)
	return seal(b, start, m)
}

func appendStart(b []byte, m Meta) []byte {
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, Version, 10)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, m.Seq, 10)
	b = append(b, `,"time":"`...)
	t := m.Time.UTC()
	if y := t.Year(); y < 1 || y > 9999 {
		t = time.Unix(0, 0).UTC()
	}
	b = t.AppendFormat(b, timeLayout)
	return append(b, '"')
}

// seal ends the line that began at start.
func seal(b []byte, start int, m Meta) ([]byte, Hash) {
	b = append(b, `,"prev":"`...)
	b = hex.AppendEncode(b, m.Prev[:])
	b = append(b, '"')
	sum := Hash(sha256.Sum256(b[start:]))
	b = append(b, hashKey...)
	b = hex.AppendEncode(b, sum[:])
	return append(b, `"}`...), sum
}

const (
	hashKey = `,"hash":"`
	hashLen = len(hashKey) + 2*sha256.Size + len(`"}`)
)

// Sum is the hash that a stored line ought to have.
func Sum(line []byte) Hash {
	return sha256.Sum256(line[:max(0, len(line)-hashLen)])
}

// text appends key and value. The key comes with its comma, quotes and colon.
func text(b []byte, key, s string, limit int) []byte { return textAfter(b, key, "", s, limit) }

// textAfter is text with a lead, which counts towards the limit.
func textAfter(b []byte, key, lead, s string, limit int) []byte {
	if s == "" {
		return b
	}
	b = append(append(append(b, key...), '"'), lead...)
	kept, cut := clip(s, limit-len(lead))
	b = appendEscaped(b, kept)
	if cut {
		b = append(b, mark...)
	}
	return append(b, '"')
}

func number(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

// host drops a userinfo part: it could be a password.
func host(b []byte, s string) []byte {
	lead := ""
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		lead, s = mark, s[i:]
	}
	return textAfter(b, `,"host":`, lead, s, MaxHost)
}

func withoutQuery(s string) string {
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		return s[:i]
	}
	return s
}
