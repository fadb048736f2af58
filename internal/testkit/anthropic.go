package testkit

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Anthropic is a fake of the messages API. It answers only requests with the run's key, in X-Api-Key or as a bearer.
type Anthropic struct {
	Key   string
	Turns []Turn
}

type anthropicTool struct {
	Name string `json:"name"`
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
		Tools    []anthropicTool   `json:"tools"`
	}
	if err := decodeBody(r, &q); err != nil {
		anthropicError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	results := 0
	for _, m := range q.Messages {
		if strings.Contains(string(m), `"tool_result"`) {
			results++
		}
	}
	turn := pick(a.Turns, results, func(tool string) bool {
		return slices.ContainsFunc(q.Tools, func(t anthropicTool) bool { return t.Name == tool })
	})
	block := map[string]any{"type": "text", "text": turn.Text}
	stop := "end_turn"
	if turn.Tool != "" {
		block, stop = map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%02d", results+1), "name": turn.Tool, "input": turn.Input}, "tool_use"
	}
	message := map[string]any{
		"id": fmt.Sprintf("msg_%02d", results+1), "type": "message", "role": "assistant", "model": q.Model, "content": []any{block},
		"stop_reason": stop, "stop_sequence": nil, "usage": map[string]any{"input_tokens": 10, "output_tokens": 10},
	}
	if !q.Stream {
		writeJSON(w, http.StatusOK, message)
		return
	}
	a.stream(w, message, block, stop)
}

func (a *Anthropic) stream(w http.ResponseWriter, message, block map[string]any, stop string) {
	e := newEvents(w)
	send := func(kind string, v map[string]any) {
		v["type"] = kind
		e.send(kind, v)
	}
	start := maps.Clone(message)
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
