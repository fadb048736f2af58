package config_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"postern/internal/operator/config"
	"postern/internal/operator/preset"
	"postern/internal/operator/strictyaml"
)

// yamlBlocks are the ```yaml blocks of a page.
func yamlBlocks(t *testing.T, page string) []string {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(sourceDir(t), "../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(src), "```") {
		if text, ok := strings.CutPrefix(part, "yaml\n"); ok && i%2 == 1 {
			blocks = append(blocks, text)
		}
	}
	return blocks
}

func TestYAMLOfTheDocumentationLoads(t *testing.T) {
	isolate(t)
	t.Chdir(t.TempDir())
	for page, want := range map[string]int{"docs/guide/presets.md": 3, "docs/reference/policy.md": 2} {
		blocks := yamlBlocks(t, page)
		if len(blocks) != want {
			t.Errorf("%s has %d blocks of yaml, want %d", page, len(blocks), want)
		}
		for _, text := range blocks {
			var err error
			switch first, _, _ := strings.Cut(text, "\n"); {
			case strings.HasPrefix(first, "version:"):
				_, err = config.Parse(config.Name, []byte(text))
			case strings.HasPrefix(first, "name:"):
				_, err = preset.Parse(strings.TrimSpace(strings.TrimPrefix(first, "name:")), page, []byte(text))
			default:
				_, err = strictyaml.Parse(page, []byte(text))
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", page, err, text)
			}
		}
	}
}

// accepts reports whether a JSON Schema accepts a YAML text, as an editor would find out.
func accepts(t *testing.T, schema *jsonschema.Resolved, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(asJSON, &plain); err != nil {
		t.Fatal(err)
	}
	return schema.Validate(plain)
}

func TestSchemaAcceptsTheDocumentationAndRefusesMistakes(t *testing.T) {
	text, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range []string{"docs/guide/presets.md", "docs/reference/policy.md"} {
		for _, block := range yamlBlocks(t, page) {
			if strings.HasPrefix(block, "version:") {
				seen++
				if err := accepts(t, schema, block); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d policies in the documentation", seen)
	}
	for _, bad := range []string{
		"{}", "version: 2", "version: 1\nprofile: {}", "version: 1\nprofiles: {default: {allow: [{}]}}", "version: 1\nprofiles: {default: {allow: [{host: a.example.com, methods: [get]}]}}",
		"version: 1\nprofiles: {default: {limits: {requests: 600}}}", "version: 1\ncredentials: {a: {kind: oauth, source: {file: x}}}", "version: 1\nprofiles: {default: {use: [{credential: a}]}}",
		"version: 1\nprofiles: {default: {allow: }}",
	} {
		if accepts(t, schema, bad) == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
}

func TestEveryPresetIsInTheGuide(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(sourceDir(t), "../../../docs/guide/presets.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range preset.Names() {
		if !bytes.Contains(src, []byte(name)) {
			t.Errorf("docs/guide/presets.md does not name %s", name)
		}
	}
}

func TestSchemaIsTheOneInTheDocumentation(t *testing.T) {
	got, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(sourceDir(t), "../../../docs/reference/postern.schema.json")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/reference/postern.schema.json is not what the structs say: go test ./internal/operator/config -run Schema -update")
	}
}
