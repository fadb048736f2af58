package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "postern"

// A pkg is the source of one directory, tests apart.
type pkg struct {
	path  string // import path
	dir   string // slash-separated, relative to the module's root
	files []*file
	tests []*file
	info  *types.Info
	types *types.Package
}

type file struct {
	name  string // slash-separated, relative to the module's root
	ast   *ast.File
	lines int
}

// house is the parsed module; it is read once and never changed.
type house struct {
	root string
	fset *token.FileSet
	pkgs []*pkg
}

var load = sync.OnceValues(func() (*house, error) { return parseHouse(filepath.Join("..", "..")) })

func source(t *testing.T) *house {
	t.Helper()
	h, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.pkgs) < 5 {
		t.Fatalf("found only %d packages below %s: the tests of this package would prove nothing", len(h.pkgs), h.root)
	}
	return h
}

// parseHouse reads every Go file of the module whatever its build tags, so that no tag hides code from a rule.
func parseHouse(root string) (*house, error) {
	h := &house{root: root, fset: token.NewFileSet()}
	byDir := map[string]*pkg{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			return skipDir(name, rel, d.Name())
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		return h.add(byDir, name, rel)
	})
	if err != nil {
		return nil, err
	}
	for _, p := range byDir {
		h.check(p)
		h.pkgs = append(h.pkgs, p)
	}
	slices.SortFunc(h.pkgs, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	return h, nil
}

func skipDir(name, rel, base string) error {
	if rel == "." {
		return nil
	}
	if strings.HasPrefix(base, ".") || base == "testdata" || rel == "bench" { // bench measures the product and is none of it
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir // another module
	}
	return nil
}

func (h *house) add(byDir map[string]*pkg, name, rel string) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(h.fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := "."
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		dir = rel[:i]
	}
	p := byDir[dir]
	if p == nil {
		p = &pkg{dir: dir, path: strings.TrimSuffix(module+"/"+dir, "/.")}
		byDir[dir] = p
	}
	f := &file{name: rel, ast: parsed, lines: strings.Count(string(src), "\n")}
	if strings.HasSuffix(rel, "_test.go") {
		p.tests = append(p.tests, f)
	} else {
		p.files = append(p.files, f)
	}
	return nil
}

// check resolves the identifiers of one package. Imports are left empty: which package a selector names and which variable an
// identifier is can be told without them, so errors about their contents mean nothing here.
func (h *house) check(p *pkg) {
	p.info = &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: emptyImporter{}, Error: func(error) {}, FakeImportC: true}
	var files []*ast.File
	for _, f := range p.files {
		files = append(files, f.ast)
	}
	p.types, _ = conf.Check(p.path, h.fset, files, p.info)
}

type emptyImporter struct{}

// Import makes an empty package. The name is a guess that is right for every import that is spelled without a name here;
// selectors are judged by import path, not by it.
func (emptyImporter) Import(path string) (*types.Package, error) {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9' {
		rest := strings.TrimSuffix(path, "/"+name)
		name = rest[strings.LastIndexByte(rest, '/')+1:]
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "go-"), "jsonschema-")
	p := types.NewPackage(path, name)
	p.MarkComplete()
	return p, nil
}

// imports lists the import paths of a file.
func imports(f *file) []string {
	var paths []string
	for _, s := range f.ast.Imports {
		path, err := strconv.Unquote(s.Path.Value)
		if err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// selected is one use of a name of another package: net.Dial is {"net", "Dial"}.
type selected struct {
	path, name string
	pos        token.Pos
}

// selections finds what a file uses of other packages. It goes by the file's own import table, so that it works on tests too.
func selections(f *file) []selected {
	names := map[string]string{}
	for _, s := range f.ast.Imports {
		path, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		if s.Name != nil {
			name = s.Name.Name
		}
		names[name] = path
	}
	var found []selected
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok {
			if path, ok := names[id.Name]; ok {
				found = append(found, selected{path, sel.Sel.Name, sel.Pos()})
			}
		}
		return true
	})
	return found
}

// in reports whether the package or file name lies at or below one of the slash-separated places.
func in(name string, places ...string) bool {
	for _, p := range places {
		if name == p || strings.HasPrefix(name, p+"/") {
			return true
		}
	}
	return false
}

func (h *house) at(pos token.Pos) string { return h.fset.Position(pos).String() }

// product is everything that ends up in the binary: not the test kit, not the programs that run the tests.
func (h *house) product() []*pkg {
	var out []*pkg
	for _, p := range h.pkgs {
		if len(p.files) > 0 && !in(p.dir, "internal/testkit", "internal/e2e", "internal/archtest", "examples", "bench") {
			out = append(out, p)
		}
	}
	return out
}
