package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A ban keeps names of other packages to the places that need them.
type ban struct {
	path   string
	names  string // a regular expression that the whole name matches
	places []string
	reason string
}

func bans() []ban {
	const dialer = "only egress reaches the world, and only against a permit"
	outside := []string{"internal/testkit", "internal/e2e"} // they are the world, and the people who knock
	egress := append([]string{"internal/trusted/egress"}, outside...)
	// control dials the gateway's own Unix socket; inspect runs inside a sandbox, to show that nothing can be reached from it.
	control := append([]string{"internal/operator/control", "internal/sandbox/inspect"}, egress...)
	return []ban{
		{"net", `Dial|DialTimeout|Dialer`, control, dialer},
		{"net", `DialTCP|DialUDP|DialIP|Lookup.*|Resolver|DefaultResolver|Resolve(TCP|UDP|IP)Addr`, egress, dialer + ", and only egress resolves names"},
		{"crypto/tls", `Dial.*|Dialer|Client`, control, dialer},
		{"net/http", `Get|Head|Post|PostForm|DefaultClient|DefaultTransport|Client|Transport|ProxyFromEnvironment|ProxyURL`, egress, dialer},
		{"net/http/httputil", `ReverseProxy|NewSingleHostReverseProxy`, egress, "a reverse proxy decides on its own what to forward"},
		{"golang.org/x/net/http2", `Transport|ConfigureTransports?`, egress, dialer},
		{"golang.org/x/sys/unix", `Connect|Sendto|SendmsgN?`, append([]string{"internal/hostile/capture", "internal/sandbox", "internal/hostile/dns"}, egress...), dialer},
		{"syscall", `Connect|Sendto`, egress, dialer},
		{"net/http", `Handle|HandleFunc|ListenAndServe.*|DefaultServeMux`, nil, "the default mux is a mutable package variable that any import can add to"},
		{"io", `ReadAll`, outside, "every read has a size: use io.ReadFull, io.LimitReader or a bounded buffer"},
		{"io/ioutil", `.*`, nil, "deprecated, and its ReadAll has no size"},
		{"os", `Getenv|LookupEnv|Environ|ExpandEnv`, append([]string{"cmd/postern", "internal/daemon", "internal/operator", "internal/sandbox", "internal/trusted/broker"}, outside...), "only the operator's side reads the environment; a library that does is configured by whoever sets it"},
		{"os", `Exit`, append([]string{"cmd/postern", "internal/sandbox", "internal/daemon"}, outside...), "an exit skips every deferred audit record"},
		{"log", `Print.*|Fatal.*|Panic.*|SetFlags|Default`, outside, "log/slog with constant messages"},
		{"log", `SetOutput`, append([]string{"internal/daemon"}, outside...), "only to silence what net/http prints there"},
		{"fmt", `Print|Printf|Println`, append([]string{"cmd/postern"}, outside...), "output goes to the writer that the command was given"},
	}
}

func TestNamesKeptToTheirPlaces(t *testing.T) {
	h := source(t)
	table := bans()
	compiled := make([]*regexp.Regexp, len(table))
	for i, b := range table {
		compiled[i] = regexp.MustCompile(`^(?:` + b.names + `)$`)
	}
	for _, p := range h.pkgs {
		for _, f := range p.files {
			for _, s := range selections(f) {
				for i, b := range table {
					if s.path == b.path && compiled[i].MatchString(s.name) && !in(p.dir, b.places...) {
						t.Errorf("%s: %s.%s: %s", h.at(s.pos), s.path, s.name, b.reason)
					}
				}
			}
		}
	}
}

func TestCoreHasNoClockAndNoGoroutine(t *testing.T) {
	clock := regexp.MustCompile(`^(Now|Since|Until|After|AfterFunc|Sleep|Tick|NewTimer|NewTicker)$`)
	h := source(t)
	for _, p := range h.pkgs {
		if !in(p.dir, "internal/core") {
			continue
		}
		for _, f := range p.files {
			for _, s := range selections(f) {
				if s.path == "time" && clock.MatchString(s.name) {
					t.Errorf("%s: time.%s: time is an argument in core, so that every decision can be repeated", h.at(s.pos), s.name)
				}
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s: a go statement in core: a goroutine needs an owner, and owners stand above", h.at(g.Pos()))
				}
				return true
			})
		}
	}
}

func TestUpstreamCertificatesAreAlwaysVerified(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		if in(p.dir, "internal/testkit", "internal/e2e") {
			continue
		}
		for _, f := range p.files {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && (id.Name == "InsecureSkipVerify" || id.Name == "KeyLogWriter") {
					t.Errorf("%s: %s: a credential leaves only over verified TLS, and there is no switch to turn that off", h.at(id.Pos()), id.Name)
				}
				return true
			})
		}
	}
}

func TestNoInitFunctions(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s: func init: one function lists the parts in order; nothing runs because it was imported", h.at(fn.Pos()))
				}
			}
		}
	}
}

func TestNoMutablePackageVariables(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		vars := map[types.Object]bool{}
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.VAR {
					continue
				}
				for _, spec := range g.Specs {
					v := spec.(*ast.ValueSpec)
					for _, name := range v.Names {
						vars[p.info.Defs[name]] = true
					}
					if state := mutableType(v); state != "" {
						t.Errorf("%s: package variable of type %s is state that all sessions share; give it an owner", h.at(v.Pos()), state)
					}
				}
			}
		}
		for _, f := range p.files {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				for _, id := range assigned(n) {
					if o := p.info.Uses[id]; o != nil && vars[o] {
						t.Errorf("%s: package variable %s is changed after it was made; give it an owner", h.at(id.Pos()), id.Name)
					}
				}
				return true
			})
		}
	}
}

// mutableType names the declared or made type of a package variable when it exists to be changed.
func mutableType(v *ast.ValueSpec) string {
	text := ""
	if v.Type != nil {
		text = types.ExprString(v.Type)
	}
	for _, value := range v.Values {
		switch e := value.(type) {
		case *ast.CompositeLit:
			if e.Type != nil {
				text = types.ExprString(e.Type)
			}
		case *ast.CallExpr:
			if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "make" && len(e.Args) > 0 {
				return types.ExprString(e.Args[0])
			}
		case *ast.UnaryExpr:
			if lit, ok := e.X.(*ast.CompositeLit); ok && e.Op == token.AND && lit.Type != nil {
				text = types.ExprString(lit.Type)
			}
		}
	}
	if strings.HasPrefix(text, "sync.") || strings.HasPrefix(text, "atomic.") || strings.HasPrefix(text, "chan ") {
		return text
	}
	return ""
}

// assigned lists the variables at the root of what a node assigns to, increments, deletes from or takes the address of.
func assigned(n ast.Node) []*ast.Ident {
	var targets []ast.Expr
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			targets = n.Lhs
		}
	case *ast.IncDecStmt:
		targets = []ast.Expr{n.X}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			targets = []ast.Expr{n.X}
		}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			targets = []ast.Expr{n.Key, n.Value}
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (id.Name == "delete" || id.Name == "clear" || id.Name == "copy") {
			targets = n.Args[:1]
		}
	}
	var roots []*ast.Ident
	for _, e := range targets {
		if id := rootIdent(e); id != nil {
			roots = append(roots, id)
		}
	}
	return roots
}

func rootIdent(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		if len(p.files) == 0 {
			continue
		}
		said := 0
		for _, f := range p.files {
			if f.ast.Doc != nil {
				said++
			}
			if name := f.ast.Name.Name; name == "util" || name == "utils" || name == "common" || name == "helpers" || name == "manager" || name == "misc" {
				t.Errorf("%s: package %s says nothing about what it holds", f.name, name)
			}
		}
		if said != 1 {
			t.Errorf("%s has %d package comments: exactly one, in its main file", p.path, said)
		}
	}
}

func TestFilesStayReadable(t *testing.T) {
	const most, longest = 500, 110
	h := source(t)
	for _, p := range h.pkgs {
		for _, f := range p.files {
			if f.lines > most {
				t.Errorf("%s has %d lines, more than %d: split it by what a reader looks for", f.name, f.lines, most)
			}
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || in(p.dir, "internal/testkit") {
					continue
				}
				if n := h.fset.Position(fn.End()).Line - h.fset.Position(fn.Pos()).Line + 1; n > longest {
					t.Errorf("%s: %s has %d lines, more than %d: functions are about a page", h.at(fn.Pos()), fn.Name.Name, n, longest)
				}
			}
		}
	}
}

func TestTestsNeverSkipAndNeverSleep(t *testing.T) {
	h := source(t)
	for _, p := range h.pkgs {
		for _, f := range p.tests {
			for _, s := range selections(f) {
				if s.path == "time" && s.name == "Sleep" && !usesSynctest(f) {
					t.Errorf("%s: time.Sleep in a test: wait for the event itself", h.at(s.pos))
				}
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok || (sel.Sel.Name != "Skip" && sel.Sel.Name != "Skipf" && sel.Sel.Name != "SkipNow") {
					return true
				}
				if id, ok := sel.X.(*ast.Ident); ok && (id.Name == "t" || id.Name == "b" || id.Name == "f" || id.Name == "tb") {
					t.Errorf("%s: %s.%s: a missing tool or privilege is an error, not a skip", h.at(sel.Pos()), id.Name, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

// usesSynctest: in a synctest bubble a sleep is an event, not a wait.
func usesSynctest(f *file) bool {
	for _, path := range imports(f) {
		if path == "testing/synctest" {
			return true
		}
	}
	return false
}

func TestNoRegistryIsSpelledOut(t *testing.T) {
	h := source(t)
	var names []string
	for domain, labels := range map[string][]string{
		"npmjs.org": {"registry", "www"}, "golang.org": {"proxy", "sum"}, "debian.org": {"deb", "security", "ftp", "snapshot"},
		"pythonhosted.org": {"files"}, "crates.io": {"index", "static"}, "rubygems.org": {"index"},
	} {
		for _, label := range labels {
			names = append(names, label+"."+domain)
		}
	}
	err := filepath.WalkDir(h.root, func(file string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == ".build" {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, name := range names {
				if strings.Contains(line, name) {
					t.Errorf("%s:%d: %s: a registry is named by its owner's domain (a wildcard), never by its full host name", file, i+1, name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
