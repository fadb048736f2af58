package h1

import "postern/internal/core/gate"

// chunks is the state of following one chunked body (RFC 9112 §7.1):
//
//	1*16HEXDIG CRLF data CRLF … "0" CRLF *(name ":" value CRLF) CRLF
//
// Chunk extensions are refused: no client sends them, and proxies disagree on where one ends.
type chunks struct {
	state   chunkState
	started bool // the first size line is whole
	digits  int
	size    uint64 // of the line being read, then what is left of the chunk
	name    [maxTrailerName]byte
	named   int // length of the trailer's name, of which only the first bytes are kept
	fields  int
	trailer int // bytes of the trailer section
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerName
	trailerValue
	trailerLF
	chunkEndLF
)

const (
	maxTrailerName   = 32
	maxTrailerFields = 32
	maxTrailerBytes  = 2 << 10 // net/http wants the whole section in its 4 KiB buffer
)

// feed reads on in b. It returns how many bytes are in order, whether they end the body, and the fault behind them.
func (c *chunks) feed(b []byte) (used int, done bool, f fault) {
	for i := 0; i < len(b); {
		if c.state == chunkData {
			n := min(c.size, uint64(len(b)-i))
			i += int(n)
			if c.size -= n; c.size == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		end, detail := c.step(b[i])
		if detail != "" {
			return i, false, malformed(i, detail)
		}
		if c.trailer > maxTrailerBytes || c.fields > maxTrailerFields {
			return i, false, fault{gate.ReasonLimitHeader, "a trailer that is too large", i}
		}
		i++
		if end {
			return i, true, fault{}
		}
	}
	return len(b), false, fault{}
}

// step takes one byte of framing. It reports the end of the body, or what is wrong.
func (c *chunks) step(b byte) (end bool, wrong string) {
	switch c.state {
	case chunkSize:
		return false, c.sizeByte(b)
	case chunkSizeLF:
		if b != '\n' {
			return false, "a chunk size that is not followed by CRLF"
		}
		c.started, c.digits = true, 0
		c.state = chunkData
		if c.size == 0 {
			c.state = trailerStart
		}
	case chunkDataCR:
		if b != '\r' {
			return false, "a chunk that is longer than its size"
		}
		c.state = chunkDataLF
	case chunkDataLF:
		if b != '\n' {
			return false, "a chunk that is longer than its size"
		}
		c.state, c.size = chunkSize, 0
	case chunkEndLF:
		if b != '\n' {
			return false, "a bare CR after the trailer"
		}
		return true, ""
	default:
		return false, c.trailerByte(b)
	}
	return false, ""
}

func (c *chunks) sizeByte(b byte) string {
	switch {
	case isHex(b) && c.digits < 16:
		d := uint64(b & 15)
		if b > '9' {
			d += 9
		}
		c.size = c.size<<4 | d
		if c.digits++; c.size > maxLength {
			return "a chunk over 2^62 bytes"
		}
	case b == '\r' && c.digits > 0:
		c.state = chunkSizeLF
	case b == ';':
		return "a chunk extension"
	default:
		return "a chunk size that is not 1 to 16 hex digits"
	}
	return ""
}

func (c *chunks) trailerByte(b byte) string {
	c.trailer++
	switch c.state {
	case trailerStart:
		if b == '\r' {
			c.state = chunkEndLF
			return ""
		}
		c.fields, c.named, c.state = c.fields+1, 0, trailerName
		fallthrough
	case trailerName:
		if b == ':' && c.named > 0 {
			if c.named <= len(c.name) && forbiddenTrailer(c.name[:c.named]) {
				return "a trailer that frames or routes the request"
			}
			c.state = trailerValue
			return ""
		}
		if !isToken[b] {
			return "a trailer name that is no token"
		}
		if c.named < len(c.name) {
			c.name[c.named] = b
		}
		c.named++
	case trailerValue:
		if b == '\r' {
			c.state = trailerLF
		} else if b < ' ' && b != '\t' || b == 0x7f {
			return "a control byte in a trailer"
		}
	case trailerLF:
		if b != '\n' {
			return "a bare CR in a trailer"
		}
		c.state = trailerStart
	}
	return ""
}

// forbiddenTrailer reports whether a field may not come after the body (RFC 9110 §6.5.1): framing, routing and authentication.
func forbiddenTrailer(name []byte) bool {
	for _, f := range forbiddenTrailers {
		if fold(name, f) {
			return true
		}
	}
	return false
}

var forbiddenTrailers = [...]string{
	"transfer-encoding", "content-length", "host", "trailer", "te", "connection", "keep-alive", "proxy-connection", "upgrade", "expect",
	"content-encoding", "content-type", "content-range", "max-forwards", "authorization", "proxy-authorization", "cookie", "range",
}
