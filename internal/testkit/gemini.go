package testkit

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Gemini is a fake of the generateContent API. It answers only requests with the run's key, in any of the places where the API takes one.
type Gemini struct {
	Key   string
	Turns []Turn
}

type geminiTool struct {
	Name string `json:"name"`
}

func (g *Gemini) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Goog-Api-Key") != g.Key && r.URL.Query().Get("key") != g.Key && r.Header.Get("Authorization") != "Bearer "+g.Key {
		geminiError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
		return
	}
	var q struct {
		Contents []struct {
			Parts []map[string]json.RawMessage `json:"parts"`
		} `json:"contents"`
		Tools []struct {
			Functions []geminiTool `json:"functionDeclarations"`
		} `json:"tools"`
		Config struct {
			Schema     *geminiSchema `json:"responseSchema"`
			JSONSchema *geminiSchema `json:"responseJsonSchema"`
		} `json:"generationConfig"`
	}
	if r.Method != http.MethodPost {
		geminiError(w, http.StatusNotFound, "NOT_FOUND", "not found")
		return
	}
	if err := decodeBody(r, &q); err != nil {
		geminiError(w, http.StatusBadRequest, "INVALID_ARGUMENT", err.Error())
		return
	}
	results := 0
	for _, c := range q.Contents {
		for _, p := range c.Parts {
			if p["functionResponse"] != nil {
				results++
			}
		}
	}
	turn := pick(g.Turns, results, func(tool string) bool {
		for _, t := range q.Tools {
			if slices.ContainsFunc(t.Functions, func(f geminiTool) bool { return f.Name == tool }) {
				return true
			}
		}
		return false
	})
	if schema := cmp.Or(q.Config.Schema, q.Config.JSONSchema); schema != nil { // a side question: which model, what next
		b, _ := json.Marshal(schema.example())
		turn = Turn{Text: string(b)}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, ":generateContent"):
		writeJSON(w, http.StatusOK, geminiAnswer("STOP", geminiPart(turn)))
	case strings.HasSuffix(r.URL.Path, ":streamGenerateContent"):
		e := newEvents(w)
		if turn.Tool != "" {
			e.send("", geminiAnswer("STOP", geminiPart(turn)))
			return
		}
		words := strings.SplitAfter(turn.Text, " ")
		for i, word := range words {
			finish := ""
			if i == len(words)-1 {
				finish = "STOP"
			}
			e.send("", geminiAnswer(finish, map[string]any{"text": word}))
		}
	default:
		geminiError(w, http.StatusNotFound, "NOT_FOUND", "not found")
	}
}

// geminiSchema is what a client wants the answer to look like.
type geminiSchema struct {
	Type       string                   `json:"type"`
	Properties map[string]*geminiSchema `json:"properties"`
	Enum       []any                    `json:"enum"`
	Minimum    float64                  `json:"minimum"`
}

// example is a small value of the schema.
func (s *geminiSchema) example() any {
	switch strings.ToLower(s.Type) {
	case "object":
		v := map[string]any{}
		for name, p := range s.Properties {
			v[name] = p.example()
		}
		return v
	case "array":
		return []any{}
	case "integer", "number":
		return max(s.Minimum, 1)
	case "boolean":
		return false
	}
	if len(s.Enum) > 0 {
		return s.Enum[0]
	}
	return ""
}

func geminiPart(t Turn) map[string]any {
	if t.Tool != "" {
		return map[string]any{"functionCall": map[string]any{"name": t.Tool, "args": t.Input}}
	}
	return map[string]any{"text": t.Text}
}

func geminiAnswer(finish string, part map[string]any) map[string]any {
	candidate := map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": []any{part}}}
	if finish != "" {
		candidate["finishReason"] = finish
	}
	return map[string]any{
		"candidates":    []any{candidate},
		"usageMetadata": map[string]any{"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20},
	}
}

func geminiError(w http.ResponseWriter, status int, code, text string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": status, "status": code, "message": text}})
}
