package testkit

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/zstd"
)

// hello is what a fake model says when nothing else was asked of it.
const hello = "Hello from the fake provider."

// Turn is what a fake model says: a tool call, or text that ends the conversation.
type Turn struct {
	Text  string
	Tool  string         // the name of a tool; "" for none
	Input map[string]any // its arguments
}

// pick is the model's answer to a conversation with so many tool results: the n-th turn answers n-1 results, the last repeats. A request
// that does not offer the turn's tool is one of the client's side questions, about a title or the like, and gets a greeting.
func pick(turns []Turn, results int, offered func(tool string) bool) Turn {
	if len(turns) == 0 {
		return Turn{Text: hello}
	}
	t := turns[min(results, len(turns)-1)]
	if t.Tool != "" && !offered(t.Tool) {
		return Turn{Text: hello}
	}
	return t
}

// decodeBody reads a request's JSON, at most 32 MiB of it, from whichever coding clients use.
func decodeBody(r *http.Request, v any) error {
	b, err := decoded(r.Header.Get("Content-Encoding"), r.Body)
	if err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(b, 32<<20)).Decode(v)
}

func decoded(coding string, r io.Reader) (io.Reader, error) {
	switch coding {
	case "", "identity":
		return r, nil
	case "gzip":
		return gzip.NewReader(r)
	case "zstd":
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	}
	return nil, fmt.Errorf("content-encoding %q", coding)
}

// events writes server-sent events, each at once.
type events struct{ w http.ResponseWriter }

func newEvents(w http.ResponseWriter) events {
	w.Header().Set("Content-Type", "text/event-stream")
	return events{w}
}

// send writes one event. kind is its name, "" for none.
func (e events) send(kind string, v map[string]any) {
	b, _ := json.Marshal(v)
	if kind != "" {
		fmt.Fprintf(e.w, "event: %s\n", kind)
	}
	fmt.Fprintf(e.w, "data: %s\n\n", b)
	_ = http.NewResponseController(e.w).Flush()
}

// Events is a server-sent event stream: n events (?n=) with a gap (?gap=10ms) between them, each holding the time it was sent in
// nanoseconds since 1970.
func Events() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 10
		_, _ = fmt.Sscan(r.URL.Query().Get("n"), &n)
		gap, err := time.ParseDuration(r.URL.Query().Get("gap"))
		if err != nil {
			gap = 10 * time.Millisecond
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(max(gap, time.Microsecond))
		defer tick.Stop()
		for range n {
			fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano())
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
