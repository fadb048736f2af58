package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
)

// agent [flags] PROMPT is a coding agent in little: it sends the prompt with one tool, "bash", runs what the model calls the tool
// with, sends the result back, and ends with the model's text. It takes its key from ANTHROPIC_API_KEY, as the real ones do.
func agent(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("agent", flag.ContinueOnError)
	url := fs.String("url", "https://api.anthropic.com/v1/messages", "the messages API")
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return usage("agent [flags] PROMPT")
	}
	messages := []map[string]any{{"role": "user", "content": fs.Arg(0)}}
	var ran []string
	for range 8 {
		answer, err := ask(*url, messages)
		if err != nil {
			return map[string]any{"ran": ran}, err
		}
		var results []map[string]any
		for _, block := range answer.Content {
			if block.Type != "tool_use" {
				continue
			}
			out, err := exec.Command("sh", "-c", block.Input.Command).CombinedOutput()
			ran = append(ran, block.Input.Command)
			text := string(out)
			if err != nil {
				text += "\n" + err.Error()
			}
			results = append(results, map[string]any{"type": "tool_result", "tool_use_id": block.ID, "content": text})
		}
		if len(results) == 0 {
			return map[string]any{"ran": ran, "text": answer.text(), "messages": messages}, nil
		}
		messages = append(messages, map[string]any{"role": "assistant", "content": answer.Content}, map[string]any{"role": "user", "content": results})
	}
	return map[string]any{"ran": ran}, errors.New("the model does not end")
}

type answer struct {
	Content []block `json:"content"`
}

type block struct {
	Type  string `json:"type"`
	ID    string `json:"id,omitempty"`
	Name  string `json:"name,omitempty"`
	Text  string `json:"text,omitempty"`
	Input struct {
		Command string `json:"command"`
	} `json:"input"`
}

func (a *answer) text() string {
	var b strings.Builder
	for _, c := range a.Content {
		b.WriteString(c.Text)
	}
	return b.String()
}

func ask(url string, messages []map[string]any) (*answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": "claude-test", "max_tokens": 1024, "messages": messages,
		"tools": []any{map[string]any{"name": "bash", "description": "Run a command", "input_schema": map[string]any{"type": "object", "properties": map[string]any{"command": map[string]any{"type": "string"}}}}},
	})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("X-Api-Key", os.Getenv("ANTHROPIC_API_KEY"))
	resp, err := client(0, "").Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, b)
	}
	a := &answer{}
	return a, json.Unmarshal(b, a)
}
