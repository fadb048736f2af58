package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"postern/internal/testkit"
)

func TestExamplesDecideAsTheirTablesSay(t *testing.T) {
	policies, err := filepath.Glob("../../examples/*/postern.yaml")
	if err != nil || len(policies) < 4 {
		t.Fatalf("found only %v (%v)", policies, err)
	}
	for _, name := range policies {
		dir := filepath.Dir(name)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			files := map[string]string{}
			for _, f := range []string{"postern.yaml", "requests.yaml"} {
				b, err := os.ReadFile(filepath.Join(dir, f))
				if err != nil {
					t.Fatal(err)
				}
				files[f] = string(b)
			}
			h := testkit.NewNet(t).NewHouse(t, testkit.Config{Profile: "allow: []", Files: files})
			for _, args := range [][]string{{"policy", "check", "postern.yaml"}, {"policy", "test", "--config", "postern.yaml", "requests.yaml"}} {
				if r := h.Postern(t, nil, args...); r.Exit != 0 {
					t.Errorf("postern %v: exit %d\n%s%s", args, r.Exit, r.Stdout, r.Stderr)
				}
			}
		})
	}
}
