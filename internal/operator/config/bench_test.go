package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"postern/internal/operator/config"
)

func BenchmarkLoad(b *testing.B) {
	path := filepath.Join(b.TempDir(), config.Name)
	text := "version: 1\ncredentials:\n  claude: {kind: api-key, source: {file: ~/k}}\nprofiles:\n  default:\n    use: [claude, npm, pypi, go]\n    mounts: [{path: ., write: true}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := config.Load(path); err != nil {
			b.Fatal(err)
		}
	}
}
