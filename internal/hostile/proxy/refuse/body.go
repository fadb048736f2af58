package refuse

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// Line is the refusal as one line of printable ASCII.
func (f Refusal) Line() string { return strings.Join(f.lines(), ". ") }

// Text is the refusal as two or three lines of printable ASCII, each ended by a newline.
func (f Refusal) Text() string { return strings.Join(f.lines(), "\n") + "\n" }

// lines say what was refused and why, what to do about it, and where more is known.
func (f Refusal) lines() []string {
	info := f.Reason.Info()
	var b strings.Builder
	b.WriteString("postern refused this request")
	if f.Host != "" {
		b.WriteString(" to ")
		b.WriteString(escape(f.Host, gate.MaxHost))
	}
	b.WriteString(": ")
	b.WriteString(escape(info.Meaning, maxText))
	if f.Detail != "" {
		b.WriteString(": ")
		b.WriteString(escape(f.Detail, maxText))
	}
	b.WriteString(" (")
	b.WriteString(escape(string(f.Reason), maxText))
	if f.Rule != "" {
		b.WriteString(", ")
		b.WriteString(escape(f.Rule, maxText))
	}
	b.WriteString(")")
	out := []string{b.String()}
	if info.Remedy != "" {
		out = append(out, "To mend it: "+escape(info.Remedy, maxText))
	}
	if !f.Event.IsZero() {
		out = append(out, "On the host: postern explain "+f.Event.String())
	}
	return out
}

const maxText = 512 // bytes of one clause

// body is the answer's content in the host's voice.
func (f *Refusal) body(status int, asksJSON bool) (contentType string, b []byte) {
	const jsonType = "application/json"
	message := f.Line()
	switch f.Voice {
	case policy.VoiceAnthropic:
		return jsonType, encode(anthropicError{
			Type:      "error",
			Error:     anthropicDetail{Type: "invalid_request_error", Message: message},
			RequestID: f.Event.String(),
		})
	case policy.VoiceOpenAI:
		return jsonType, encode(openAIError{openAIDetail{Message: message, Type: "invalid_request_error", Code: "postern_denied"}})
	case policy.VoiceGoogle:
		return jsonType, encode(googleError{googleDetail{Code: status, Message: message, Status: "INVALID_ARGUMENT", Details: []struct{}{}}})
	}
	if f.Voice == policy.VoiceJSON || asksJSON {
		return jsonType, encode(plainError{
			Error:   message, // npm prints this one
			Reason:  string(f.Reason),
			Event:   f.Event.String(),
			Message: message, // gh prints this one
			Hint:    f.Reason.Info().Remedy,
		})
	}
	return "text/plain; charset=utf-8", []byte(f.Text())
}

type anthropicError struct {
	Type      string          `json:"type"`
	Error     anthropicDetail `json:"error"`
	RequestID string          `json:"request_id"`
}

type anthropicDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type googleError struct {
	Error googleDetail `json:"error"`
}

type googleDetail struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Status  string     `json:"status"`
	Details []struct{} `json:"details"`
}

type plainError struct {
	Error   string `json:"error"`
	Reason  string `json:"reason"`
	Event   string `json:"event"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the text is plain ASCII, and people read it
	if err := e.Encode(v); err != nil {
		return []byte("{}\n") // structs of strings always encode
	}
	return b.Bytes()
}

// escape makes s printable ASCII: other runes become \u{…}, bytes that are no UTF-8 \x…, and a backslash is doubled.
// Beyond limit bytes of s it is cut.
func escape(s string, limit int) string {
	cut := len(s) > limit
	if cut {
		s = s[:limit]
	}
	if printable(s) && !cut {
		return s
	}
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' || r == 0x7f:
			b.WriteString(`\x`)
			b.WriteByte(hex[s[i]>>4])
			b.WriteByte(hex[s[i]&15])
		case r == '\\':
			b.WriteString(`\\`)
		case r < 0x7f:
			b.WriteByte(byte(r))
		default:
			b.WriteString(`\u{`)
			for shift := 20; shift >= 0; shift -= 4 {
				if d := r >> shift; d != 0 || shift == 0 {
					b.WriteByte(hex[d&15])
				}
			}
			b.WriteByte('}')
		}
		i += n
	}
	if cut {
		b.WriteString("...")
	}
	return b.String()
}

func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' || s[i] == '\\' {
			return false
		}
	}
	return true
}
