package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\[([^\]\n]*)\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} (.+?)\s*$`)
	unkept  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// page is a Markdown file: its links outside of code, and the anchors that its headings make.
type page struct {
	links   [][2]string // text, target
	anchors map[string]bool
	tests   []string // names of tests, in backquotes
}

func readPage(src string) *page {
	p := &page{anchors: map[string]bool{}}
	code := false
	for line := range strings.Lines(src) {
		if strings.HasPrefix(line, "```") {
			code = !code
			continue
		}
		if code || strings.HasPrefix(line, "    ") {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			name := strings.ReplaceAll(unkept.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") // as forges do
			p.anchors[name] = true
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			p.links = append(p.links, [2]string{m[1], m[2]})
		}
		for _, m := range mentioned.FindAllStringSubmatch(line, -1) {
			p.tests = append(p.tests, m[1])
		}
	}
	return p
}

// pages are all Markdown files of the repository, by path.
func pages(t *testing.T, h *house) map[string]*page {
	t.Helper()
	found := map[string]*page{}
	err := filepath.WalkDir(h.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".build" || d.Name() == "node_modules" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".md") {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(h.root, name)
		found[rel] = readPage(string(src))
		return err
	})
	if err != nil || len(found) < 15 {
		t.Fatalf("found %d pages: %v", len(found), err)
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	h := source(t)
	all, tests := pages(t, h), testNames(h)
	for name, p := range all {
		for _, l := range p.links {
			target, anchor, _ := strings.Cut(l[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			to := name
			if target != "" {
				to = filepath.Join(filepath.Dir(name), filepath.FromSlash(target))
			}
			if _, err := os.Stat(filepath.Join(h.root, to)); err != nil {
				t.Errorf("%s: [%s](%s): there is no such file", name, l[0], l[1])
				continue
			}
			if anchor != "" && (all[to] == nil || !all[to].anchors[anchor]) {
				t.Errorf("%s: [%s](%s): %s has no such heading", name, l[0], l[1], to)
			}
			test := strings.Trim(l[0], "`")
			if where := tests[test]; where != "" && filepath.Base(where) != filepath.Base(to) {
				t.Errorf("%s: [%s](%s): the test stands in %s", name, l[0], l[1], where)
			}
		}
	}
}

func TestEveryPageIsInTheIndexAndNamesTestsThatExist(t *testing.T) {
	h := source(t)
	all, tests := pages(t, h), testNames(h)
	linked := map[string]bool{"docs/README.md": true}
	for _, l := range all["docs/README.md"].links {
		linked[filepath.Join("docs", l[1])] = true
	}
	for name, p := range all {
		if !strings.HasPrefix(name, "docs/") {
			continue
		}
		if !linked[name] {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
		for _, test := range p.tests {
			if tests[test] == "" {
				t.Errorf("%s names %s, which does not exist", name, test)
			}
		}
	}
}

func TestPagesAreReadAsForgesReadThem(t *testing.T) {
	p := readPage("# A page, `code` & more\n\nsee [x](y.md#z) and [`TestLinksLeadSomewhere`](a_test.go)\n```\n# no heading\n[no](link)\n```\n    [no](link)\n## Über uns\n")
	if len(p.links) != 2 || p.links[0] != [2]string{"x", "y.md#z"} || len(p.anchors) != 2 || !p.anchors["a-page-code--more"] || !p.anchors["über-uns"] || len(p.tests) != 1 {
		t.Errorf("%+v", p)
	}
}
