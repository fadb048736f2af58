package config_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
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

// yamlBlock is a block of a page; name is the file that ```yaml file=NAME gives it.
type yamlBlock struct{ name, text string }

func yamlBlocks(t *testing.T, page string) []yamlBlock {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(sourceDir(t), "../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []yamlBlock
	for i, part := range strings.Split(string(src), "```") {
		if info, text, _ := strings.Cut(part, "\n"); i%2 == 1 && (info == "yaml" || strings.HasPrefix(info, "yaml ")) {
			blocks = append(blocks, yamlBlock{strings.TrimPrefix(info, "yaml file="), text})
		}
	}
	return blocks
}

// pagesWithYAML are those pages of README.md and docs/ that have a block of yaml.
func pagesWithYAML(t *testing.T) (pages []string) {
	t.Helper()
	root := filepath.Join(sourceDir(t), "../../..")
	all := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		page := strings.TrimPrefix(name, root+"/")
		if len(yamlBlocks(t, page)) > 0 {
			pages = append(pages, page)
		}
	}
	if len(pages) < 4 || pages[0] != "README.md" {
		t.Fatalf("pages with yaml: %v", pages)
	}
	return pages
}

func TestYAMLOfTheDocumentationLoads(t *testing.T) {
	isolate(t)
	t.Chdir(t.TempDir())
	for _, page := range pagesWithYAML(t) {
		for _, block := range yamlBlocks(t, page) {
			text := block.text
			if block.name != "yaml" { // other blocks of the page may name it
				if err := os.WriteFile(block.name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
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
	for _, page := range pagesWithYAML(t) {
		for _, block := range yamlBlocks(t, page) {
			if strings.HasPrefix(block.text, "version:") {
				seen++
				if err := accepts(t, schema, block.text); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	if seen < 4 {
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
