package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// testNames are the tests, fuzz targets and benchmarks of the module, and for each where it stands.
func testNames(h *house) map[string]string {
	found := map[string]string{}
	for _, p := range h.pkgs {
		for _, f := range p.tests {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && named.MatchString(fn.Name.Name) {
					found[fn.Name.Name] = f.name
				}
			}
		}
	}
	return found
}

var (
	named     = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z0-9_]\w*$`)
	mentioned = regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)[A-Z0-9]\\w*)`")
	threat    = regexp.MustCompile(`^T\d+$`)
	invariant = regexp.MustCompile(`\bI(\d+)\b`)
)

// rows are the cells of a page's table rows whose first cell matches id.
func rows(t *testing.T, h *house, page string, id *regexp.Regexp) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.root, page))
	if err != nil {
		t.Fatal(err)
	}
	var found [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if id.MatchString(cells[0]) {
			found = append(found, cells)
		}
	}
	return found
}

func TestEveryThreatNamesAnInvariantAndATest(t *testing.T) {
	h := source(t)
	tests := testNames(h)
	invariants := map[string]bool{}
	for _, row := range rows(t, h, "INVARIANTS.md", regexp.MustCompile(`^I\d+$`)) {
		invariants[row[0]] = true
	}
	threats := rows(t, h, "THREATS.md", threat)
	if len(threats) < 20 {
		t.Fatalf("THREATS.md has %d threats: its table was not found", len(threats))
	}
	seen := map[string]bool{}
	for _, row := range threats {
		line := strings.Join(row, " | ")
		if seen[row[0]] {
			t.Errorf("THREATS.md: %s stands twice", row[0])
		}
		seen[row[0]] = true
		cited := invariant.FindAllString(line, -1)
		if len(cited) == 0 {
			t.Errorf("THREATS.md: %s names no invariant", row[0])
		}
		for _, i := range cited {
			if !invariants[i] {
				t.Errorf("THREATS.md: %s names %s, which INVARIANTS.md does not have", row[0], i)
			}
		}
		checkTests(t, "THREATS.md", row[0], line, tests)
	}
}

func TestEveryInvariantNamesATest(t *testing.T) {
	h := source(t)
	tests := testNames(h)
	all := rows(t, h, "INVARIANTS.md", regexp.MustCompile(`^I\d+$`))
	if len(all) < 10 {
		t.Fatalf("INVARIANTS.md has %d invariants: its table was not found", len(all))
	}
	for i, row := range all {
		if want := "I" + strconv.Itoa(i+1); row[0] != want {
			t.Errorf("INVARIANTS.md: %s stands where %s belongs: numbers are never reused or moved", row[0], want)
		}
		checkTests(t, "INVARIANTS.md", row[0], strings.Join(row, " | "), tests)
	}
}

func TestPagesNameOnlyTestsThatExist(t *testing.T) {
	h := source(t)
	tests := testNames(h)
	for _, page := range []string{"README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(h.root, page))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range mentioned.FindAllStringSubmatch(string(text), -1) {
			if tests[m[1]] == "" {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

func checkTests(t *testing.T, page, id, line string, tests map[string]string) {
	t.Helper()
	names := mentioned.FindAllStringSubmatch(line, -1)
	if len(names) == 0 {
		t.Errorf("%s: %s names no test: a claim without a test is a wish", page, id)
	}
	for _, m := range names {
		if tests[m[1]] == "" {
			t.Errorf("%s: %s names %s, which does not exist", page, id, m[1])
		}
	}
}
