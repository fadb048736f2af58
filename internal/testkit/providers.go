package testkit

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Turn is what a fake model says: a tool call, or text that ends the conversation.
type Turn struct {
	Text  string
	Tool  string         // the name of a tool of the request; "" for none
	Input map[string]any // its arguments
}

// Anthropic is a fake of the messages API. It answers only requests with the run's key, in X-Api-Key or as a bearer.
type Anthropic struct {
	Key   string
	Turns []Turn // the n-th answer of a conversation with n-1 tool results; the last repeats
}

func (a *Anthropic) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Api-Key") != a.Key && r.Header.Get("Authorization") != "Bearer "+a.Key {
		anthropicError(w, http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/messages" {
		anthropicError(w, http.StatusNotFound, "not_found_error", "Not found")
		return
	}
	var q struct {
		Model    string            `json:"model"`
		Stream   bool              `json:"stream"`
		Messages []json.RawMessage `json:"messages"`
		Tools    []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 32<<20)).Decode(&q); err != nil {
		anthropicError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	turn := a.turn(q.Messages)
	block := map[string]any{"type": "text", "text": turn.Text}
	stop := "end_turn"
	if turn.Tool != "" {
		block, stop = map[string]any{"type": "tool_use", "id": "toolu_01", "name": turn.Tool, "input": turn.Input}, "tool_use"
	}
	message := map[string]any{
		"id": "msg_01", "type": "message", "role": "assistant", "model": q.Model, "content": []any{block},
		"stop_reason": stop, "stop_sequence": nil, "usage": map[string]any{"input_tokens": 10, "output_tokens": 10},
	}
	if !q.Stream {
		writeJSON(w, http.StatusOK, message)
		return
	}
	a.stream(w, message, block, stop)
}

// turn counts the tool results of the conversation so far.
func (a *Anthropic) turn(messages []json.RawMessage) Turn {
	n := 0
	for _, m := range messages {
		if strings.Contains(string(m), `"tool_result"`) {
			n++
		}
	}
	if len(a.Turns) == 0 {
		return Turn{Text: "Hello from the fake provider."}
	}
	return a.Turns[min(n, len(a.Turns)-1)]
}

func (a *Anthropic) stream(w http.ResponseWriter, message, block map[string]any, stop string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, v map[string]any) {
		v["type"] = kind
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
		_ = http.NewResponseController(w).Flush()
	}
	start := map[string]any{}
	for k, v := range message {
		start[k] = v
	}
	start["content"], start["stop_reason"] = []any{}, nil
	send("message_start", map[string]any{"message": start})
	if block["type"] == "text" {
		send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
		for _, word := range strings.SplitAfter(fmt.Sprint(block["text"]), " ") {
			send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": word}})
		}
	} else {
		in, _ := json.Marshal(block["input"])
		send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "tool_use", "id": block["id"], "name": block["name"], "input": map[string]any{}}})
		send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "input_json_delta", "partial_json": string(in)}})
	}
	send("content_block_stop", map[string]any{"index": 0})
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 10}})
	send("message_stop", map[string]any{})
}

func anthropicError(w http.ResponseWriter, status int, kind, text string) {
	writeJSON(w, status, map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": text}})
}

// OpenAI is a fake of the responses and chat completions APIs.
type OpenAI struct{ Key string }

func (o *OpenAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+o.Key {
		// The real one shows a part of the key it was given.
		given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": "invalid_api_key", "message": "Incorrect API key provided: " + given}})
		return
	}
	var q struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(io.LimitReader(r.Body, 32<<20)).Decode(&q); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error()}})
			return
		}
	}
	const text = "Hello from the fake provider."
	usage := map[string]any{"input_tokens": 10, "output_tokens": 10, "total_tokens": 20, "prompt_tokens": 10, "completion_tokens": 10}
	item := map[string]any{"type": "message", "id": "msg_01", "role": "assistant", "status": "completed", "content": []any{map[string]any{"type": "output_text", "text": text, "annotations": []any{}}}}
	response := map[string]any{"id": "resp_01", "object": "response", "status": "completed", "model": q.Model, "output": []any{item}, "usage": usage}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": "gpt-test", "object": "model"}}})
	case r.Method == http.MethodPost && r.URL.Path == "/v1/responses" && q.Stream:
		w.Header().Set("Content-Type", "text/event-stream")
		for i, e := range []map[string]any{
			{"type": "response.created", "response": map[string]any{"id": "resp_01", "status": "in_progress"}},
			{"type": "response.output_item.added", "output_index": 0, "item": item},
			{"type": "response.output_text.delta", "item_id": "msg_01", "output_index": 0, "content_index": 0, "delta": text},
			{"type": "response.output_item.done", "output_index": 0, "item": item},
			{"type": "response.completed", "response": response},
		} {
			e["sequence_number"] = i
			b, _ := json.Marshal(e)
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e["type"], b)
			_ = http.NewResponseController(w).Flush()
		}
	case r.Method == http.MethodPost && r.URL.Path == "/v1/responses":
		writeJSON(w, http.StatusOK, response)
	case r.Method == http.MethodPost && r.URL.Path == "/v1/chat/completions":
		writeJSON(w, http.StatusOK, map[string]any{"id": "chatcmpl-01", "object": "chat.completion", "model": q.Model, "usage": usage,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": text}}}})
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"message": "no such endpoint"}})
	}
}

// Gemini is a fake of the generateContent API.
type Gemini struct{ Key string }

func (g *Gemini) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Goog-Api-Key") != g.Key && r.URL.Query().Get("key") != g.Key && r.Header.Get("Authorization") != "Bearer "+g.Key {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"code": 400, "status": "INVALID_ARGUMENT", "message": "API key not valid. Please pass a valid API key."}})
		return
	}
	answer := map[string]any{
		"candidates":    []any{map[string]any{"index": 0, "finishReason": "STOP", "content": map[string]any{"role": "model", "parts": []any{map[string]any{"text": "Hello from the fake provider."}}}}},
		"usageMetadata": map[string]any{"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20},
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 32<<20))
	switch {
	case r.Method != http.MethodPost:
		writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"code": 404, "message": "not found"}})
	case strings.HasSuffix(r.URL.Path, ":generateContent"):
		writeJSON(w, http.StatusOK, answer)
	case strings.HasSuffix(r.URL.Path, ":streamGenerateContent"):
		w.Header().Set("Content-Type", "text/event-stream")
		b, _ := json.Marshal(answer)
		fmt.Fprintf(w, "data: %s\r\n\r\n", b)
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"code": 404, "message": "not found"}})
	}
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
