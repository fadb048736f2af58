package testkit

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// Echoes lists the ways in which Echo reflects a credential (?as=).
func Echoes() []string {
	return []string{
		"raw", "base64", "base64+1", "base64+2", "base64url", "hex", "HEX", "url", "url-all", "json", "json-unicode", "basic", "html",
		"header", "location", "cookie", "trailer", "error", "sse", "gzip", "deflate", "event-split",
	}
}

// Echo reflects the credential it was sent: the value of Authorization (without its scheme), X-Api-Key, X-Goog-Api-Key or ?key=.
//
// ?as= names the way (see Echoes), ?chunk=N flushes after every N bytes (over HTTP/2: one DATA frame each), ?pad=N puts N bytes
// before it. POST bodies are returned as they came, with ?body=1, also where the credential was put into them.
func Echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("body") != "" {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = io.Copy(&flusher{w: w}, r.Body)
			return
		}
		value := credentialOf(r)
		pad, _ := strconv.Atoi(q.Get("pad"))
		chunk, _ := strconv.Atoi(q.Get("chunk"))
		e := echo{w: w, value: value, pad: strings.Repeat(".", max(0, min(pad, 1<<20))), chunk: chunk}
		e.answer(q.Get("as"))
	})
}

func credentialOf(r *http.Request) string {
	if user, password, ok := r.BasicAuth(); ok {
		if password == "" {
			return user
		}
		return password
	}
	if a := r.Header.Get("Authorization"); a != "" {
		_, token, ok := strings.Cut(a, " ")
		if !ok {
			return a
		}
		return token
	}
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key", "Private-Token"} {
		if v := r.Header.Get(name); v != "" {
			return v
		}
	}
	return r.URL.Query().Get("key")
}

type echo struct {
	w          http.ResponseWriter
	value, pad string
	chunk      int
}

func (e *echo) answer(as string) {
	h := e.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	switch as {
	case "header":
		h.Set("X-Reflected", "you sent "+e.value)
		e.body("in a header")
	case "location":
		h.Set("Location", "/next?token="+url.QueryEscape(e.value))
		e.w.WriteHeader(http.StatusFound)
	case "cookie":
		h.Set("Set-Cookie", "session="+e.value+"; Path=/; Secure")
		e.body("in a cookie")
	case "trailer":
		h.Set("Trailer", "X-Reflected")
		e.body("in a trailer")
		_ = http.NewResponseController(e.w).Flush()
		h.Set("X-Reflected", e.value)
	case "error":
		e.w.WriteHeader(http.StatusBadRequest)
		e.body(`{"error":{"message":"Incorrect API key provided: ` + e.value + `"}}`)
	case "gzip", "deflate":
		h.Set("Content-Encoding", as)
		e.body(compress(as, e.pad+"you sent "+e.value+"\n"))
	case "sse":
		h.Set("Content-Type", "text/event-stream")
		e.body("event: delta\ndata: {\"text\":\"" + e.value + "\"}\n\n")
	case "event-split":
		h.Set("Content-Type", "text/event-stream")
		half := len(e.value) / 2
		e.body("data: " + e.value[:half])
		_ = http.NewResponseController(e.w).Flush()
		e.body(e.value[half:] + "\n\n")
	default:
		e.body(e.pad + "you sent " + spell(as, e.value) + "\n")
	}
}

func spell(as, value string) string {
	b := []byte(value)
	switch as {
	case "base64":
		return base64.StdEncoding.EncodeToString(b)
	case "base64+1":
		return base64.StdEncoding.EncodeToString(append([]byte("u"), b...))
	case "base64+2":
		return base64.StdEncoding.EncodeToString(append([]byte("us"), b...))
	case "base64url":
		return base64.RawURLEncoding.EncodeToString(b)
	case "basic":
		return base64.StdEncoding.EncodeToString([]byte("x-access-token:" + value))
	case "hex":
		return hex.EncodeToString(b)
	case "HEX":
		return strings.ToUpper(hex.EncodeToString(b))
	case "url":
		return url.QueryEscape(value)
	case "url-all":
		var s strings.Builder
		for _, c := range b {
			fmt.Fprintf(&s, "%%%02X", c)
		}
		return s.String()
	case "json":
		j, _ := json.Marshal(map[string]string{"given": value})
		return string(j)
	case "json-unicode":
		var s strings.Builder
		for _, c := range b {
			fmt.Fprintf(&s, `\u%04x`, c)
		}
		return `{"given":"` + s.String() + `"}`
	case "html":
		return `<pre title="` + value + `">` + value + `</pre>`
	}
	return value
}

func compress(as, text string) string {
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if as == "deflate" {
		w, _ = flate.NewWriter(&b, flate.BestSpeed)
	}
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func (e *echo) body(text string) {
	if e.chunk <= 0 {
		_, _ = io.WriteString(e.w, text)
		return
	}
	for len(text) > 0 {
		n := min(e.chunk, len(text))
		if _, err := io.WriteString(e.w, text[:n]); err != nil {
			return
		}
		if http.NewResponseController(e.w).Flush() != nil {
			return
		}
		text = text[n:]
	}
}

// flusher sends every write at once.
type flusher struct{ w http.ResponseWriter }

func (f *flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// WebSocketEcho returns every message, and before the first one a message with the credential of the upgrade request when ?leak=1.
func WebSocketEcho() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the origin is of no interest here
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		c.SetReadLimit(32 << 20)
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
		defer cancel()
		if r.URL.Query().Get("leak") != "" {
			if c.Write(ctx, websocket.MessageText, []byte("you sent "+credentialOf(r))) != nil {
				return
			}
		}
		for {
			kind, b, err := c.Read(ctx)
			if err != nil || c.Write(ctx, kind, b) != nil {
				return
			}
		}
	})
}

// Bulk sends ?n= bytes (GET) or counts what it is sent (any other method) and answers with the count.
func Bulk() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "%d %v\n", n, err)
			return
		}
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "n: how many bytes", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		w.Header().Set("Content-Type", "application/octet-stream")
		block := bytes.Repeat([]byte("postern!"), 8<<10)
		for n > 0 {
			k, err := w.Write(block[:min(n, int64(len(block)))])
			if err != nil {
				return
			}
			n -= int64(k)
		}
	})
}
