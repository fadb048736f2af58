package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"postern/internal/core/policy"
	"postern/internal/operator/config"
)

// marker stands for a credential that was pasted anywhere; no error may repeat it.
const marker = "Zq7Xw9Kp3Lm5Vb8N"

func FuzzLoad(f *testing.F) {
	isolate(f)
	src, err := os.ReadFile("testdata/mistakes.txtar")
	if err != nil {
		f.Fatal(err)
	}
	_, files := readArchive(src)
	for i, file := range files {
		if strings.HasSuffix(file.name, ".yaml") && i%6 == 0 {
			f.Add(file.data)
		}
	}
	for _, page := range []string{"../../../docs/reference/policy.md", "../../../docs/guide/presets.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			f.Fatal(err)
		}
		for i, part := range strings.Split(string(text), "```") {
			if i%2 == 1 {
				f.Add([]byte(strings.TrimPrefix(part, "yaml\n")))
			}
		}
	}
	f.Add([]byte("version: 1\ncredentials: {MARK: {kind: MARK, source: {file: MARK}}}\nprofiles: {MARK: {use: [MARK], env: {MARK: \"{placeholder:MARK}\"}}}\n"))
	f.Add([]byte("version: 1\nprofiles:\n  default:\n    allow: [{host: MARK, paths: [MARK], methods: [MARK], inject: {credential: MARK, header: MARK, format: MARK}}]\n    git: [{repo: MARK}]\n    mounts: [{path: $MARK}]\n"))
	f.Add([]byte("version: 1\nupstreams: {MARK: {address: MARK}}\nproxy: {url: \"http://MARK@h\"}\naudit: {dir: ~MARK}\n"))
	path := filepath.Join(f.TempDir(), config.Name)
	f.Fuzz(func(t *testing.T, src []byte) {
		text := strings.ReplaceAll(string(src), "MARK", marker)
		start := time.Now()
		file, err := config.Parse(path, []byte(text))
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err != nil {
			if strings.Contains(err.Error(), marker) || strings.Contains(err.Error(), strings.ToLower(marker)) {
				t.Errorf("the error repeats the file: %v", err)
			}
			return
		}
		for _, name := range file.Profiles() {
			c, err := file.Profile(name)
			if err != nil || c.Policy == nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, r := range c.Rules {
				if in := r.Inject; in.Mode != policy.InjectNone {
					if _, ok := c.Credentials[in.Credential]; !ok {
						t.Errorf("%s injects a credential that is not declared", r.Name)
					}
				}
			}
		}
	})
}
