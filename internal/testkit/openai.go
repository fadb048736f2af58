package testkit

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

// OpenAI is a fake of the responses and chat completions APIs. It answers only requests with the run's key as a bearer.
type OpenAI struct {
	Key   string
	Turns []Turn // for the responses API; a tool without a schema takes its input as a text, under "input"
}

// openAITool is a function, a custom tool, or a namespace of them.
type openAITool struct {
	Type  string       `json:"type"`
	Name  string       `json:"name"`
	Tools []openAITool `json:"tools"`
}

type openAIRequest struct {
	Model  string          `json:"model"`
	Stream bool            `json:"stream"`
	Input  json.RawMessage `json:"input"` // a text, or items
	Tools  []openAITool    `json:"tools"`
}

// read returns how many results of tools the request holds, and the tools it offers by name.
func (q *openAIRequest) read() (results int, offered map[string]openAITool) {
	tools := q.Tools
	var items []struct {
		Type  string       `json:"type"`
		Tools []openAITool `json:"tools"`
	}
	if json.Unmarshal(q.Input, &items) == nil {
		for _, i := range items {
			if i.Type == "function_call_output" || i.Type == "custom_tool_call_output" {
				results++
			}
			tools = append(tools, i.Tools...) // codex offers them as an item of the conversation
		}
	}
	offered = map[string]openAITool{}
	for _, t := range tools {
		offered[t.Name] = t
		for _, in := range t.Tools {
			offered[in.Name] = in
		}
	}
	return results, offered
}

func (o *OpenAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+o.Key {
		// The real one shows a part of the key it was given.
		given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": "invalid_api_key", "message": "Incorrect API key provided: " + given}})
		return
	}
	var q openAIRequest
	if r.Method == http.MethodPost {
		if err := decodeBody(r, &q); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error()}})
			return
		}
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/v1/models":
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": "gpt-test", "object": "model"}}})
	case r.Method == http.MethodPost && r.URL.Path == "/v1/responses":
		o.respond(w, &q)
	case r.Method == http.MethodPost && r.URL.Path == "/v1/chat/completions":
		writeJSON(w, http.StatusOK, map[string]any{
			"id": "chatcmpl-01", "object": "chat.completion", "model": q.Model, "usage": map[string]any{"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": hello}}},
		})
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"message": "no such endpoint"}})
	}
}

// respond is one answer of the responses API: a message, or a call of a tool.
func (o *OpenAI) respond(w http.ResponseWriter, q *openAIRequest) {
	results, offered := q.read()
	turn := pick(o.Turns, results, func(tool string) bool { _, ok := offered[tool]; return ok })
	n := fmt.Sprintf("_%02d", results+1)
	item := map[string]any{"type": "message", "id": "msg" + n, "role": "assistant", "status": "completed", "content": []any{map[string]any{"type": "output_text", "text": turn.Text, "annotations": []any{}}}}
	part, whole := "", turn.Text // the field of a call that is streamed in pieces, and what it comes to
	switch {
	case turn.Tool != "" && offered[turn.Tool].Type == "custom":
		part, whole = "input", fmt.Sprint(turn.Input["input"])
		item = map[string]any{"type": "custom_tool_call", "id": "ctc" + n, "call_id": "call" + n, "name": turn.Tool, part: whole, "status": "completed"}
	case turn.Tool != "":
		b, _ := json.Marshal(turn.Input)
		part, whole = "arguments", string(b)
		item = map[string]any{"type": "function_call", "id": "fc" + n, "call_id": "call" + n, "name": turn.Tool, part: whole, "status": "completed"}
	}
	response := map[string]any{
		"id": "resp" + n, "object": "response", "status": "completed", "model": q.Model, "output": []any{item},
		"usage": map[string]any{"input_tokens": 10, "output_tokens": 10, "total_tokens": 20},
	}
	if !q.Stream {
		writeJSON(w, http.StatusOK, response)
		return
	}
	o.stream(w, response, item, part, whole)
}

func (o *OpenAI) stream(w http.ResponseWriter, response, item map[string]any, part, whole string) {
	e, n := newEvents(w), 0
	send := func(kind string, v map[string]any) {
		v["type"], v["sequence_number"] = kind, n
		n++
		e.send(kind, v)
	}
	begun := maps.Clone(item)
	begun["status"] = "in_progress"
	pieces := "response.output_text.delta"
	switch part {
	case "":
		begun["content"] = []any{}
	case "input":
		begun[part], pieces = "", "response.custom_tool_call_input.delta"
	default:
		begun[part], pieces = "", "response.function_call_arguments.delta"
	}
	send("response.created", map[string]any{"response": map[string]any{"id": response["id"], "status": "in_progress"}})
	send("response.output_item.added", map[string]any{"output_index": 0, "item": begun})
	for _, word := range strings.SplitAfter(whole, " ") {
		send(pieces, map[string]any{"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": word})
	}
	send("response.output_item.done", map[string]any{"output_index": 0, "item": item})
	send("response.completed", map[string]any{"response": response})
}
