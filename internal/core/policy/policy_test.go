package policy

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/git"
)

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// must is a parsed value, or the end of the test.

func must[V any](t failer, v V, err error) V {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return v
}

func host(t failer, s string) gate.Host {
	t.Helper()
	h, err := gate.ParseHost(s)
	return must(t, h, err)
}

func pattern(t failer, s string) HostPattern {
	t.Helper()
	p, err := ParseHostPattern(s)
	return must(t, p, err)
}

func paths(t failer, list ...string) []PathPattern {
	t.Helper()
	var out []PathPattern
	for _, s := range list {
		p, err := ParsePathPattern(s)
		out = append(out, must(t, p, err))
	}
	return out
}

func repo(t failer, s string) gate.Repo {
	t.Helper()
	r, err := gate.ParseRepo(s)
	return must(t, r, err)
}

func subject() Subject { return Subject{Session: gate.NewSessionID([10]byte{1})} }

// allow is a rule for everything on a host.

func allow(t failer, h string) Rule {
	t.Helper()
	return Rule{Name: "allow " + h, Effect: Allow, Host: pattern(t, h), Scheme: gate.HTTPS, Methods: gate.AllMethods}
}

func deny(t failer, h string) Rule {
	t.Helper()
	r := allow(t, h)
	r.Name, r.Effect = "deny "+h, Deny
	return r
}

func compiled(t failer, rules ...Rule) *Policy {
	t.Helper()
	p, err := Compile(rules)
	return must(t, p, err)
}

func connect(t failer, h string) Action {
	t.Helper()
	return Action{Kind: Connect, Scheme: gate.HTTPS, Host: host(t, h), Port: 443}
}

// request is "METHOD target" on a host, classified as the proxy does.

func request(t failer, h, line string) Action {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	m, err := gate.ParseMethod(method)
	must(t, m, err)
	p, err := gate.ParsePath(target)
	must(t, p, err)
	a := Action{Kind: Request, Scheme: gate.HTTPS, Host: host(t, h), Port: 443, Method: m, Path: p}
	a.Git = git.Classify(a.Host, m, p)
	return a
}

func TestZeroValuesDeny(t *testing.T) {
	if Verdict(0) != Deny || Mode(0) != NoMode || ActionKind(0) != NoAction || InjectMode(0) != InjectNone || SlotKind(0) != NoSlot {
		t.Error("the zero of an enumeration permits something")
	}
	for v, want := range map[string]string{Verdict(0).String(): "deny", Allow.String(): "allow", Verdict(9).String(): "deny", Mode(0).String(): "none", Intercept.String(): "intercept", Tunnel.String(): "tunnel", Mode(9).String(): "none"} {
		if v != want {
			t.Errorf("%q, want %q", v, want)
		}
	}
	everything := compiled(t, allow(t, "*"))
	good := request(t, "a.test", "GET /")
	if d := everything.Decide(subject(), good); d.Verdict != Allow {
		t.Fatalf("the control is denied: %s", d.Reason)
	}
	change := func(f func(*Action)) Action { a := good; f(&a); return a }
	for name, c := range map[string]struct {
		p *Policy
		s Subject
		a Action
	}{
		"nil policy":    {nil, subject(), good},
		"zero policy":   {new(Policy), subject(), good},
		"empty policy":  {compiled(t), subject(), good},
		"zero subject":  {everything, Subject{}, good},
		"zero action":   {everything, subject(), Action{}},
		"no kind":       {everything, subject(), change(func(a *Action) { a.Kind = NoAction })},
		"unknown kind":  {everything, subject(), change(func(a *Action) { a.Kind = 9 })},
		"no host":       {everything, subject(), change(func(a *Action) { a.Host = gate.Host{} })},
		"no port":       {everything, subject(), change(func(a *Action) { a.Port = 0 })},
		"no scheme":     {everything, subject(), change(func(a *Action) { a.Scheme = gate.NoScheme })},
		"no method":     {everything, subject(), change(func(a *Action) { a.Method = gate.NoMethod })},
		"false method":  {everything, subject(), change(func(a *Action) { a.Method = 200 })},
		"no path":       {everything, subject(), change(func(a *Action) { a.Path = gate.Path{} })},
		"connect, none": {new(Policy), subject(), connect(t, "a.test")},
	} {
		d := c.p.Decide(c.s, c.a)
		if d.Verdict != Deny || d.Reason == gate.ReasonNone || d.Reason == gate.ReasonAllowed || d.Permit.Valid() || d.Mode != NoMode || d.Rule != "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestZeroPermitProvesNothing(t *testing.T) {
	v := reflect.ValueOf(Permit{})
	for i := range v.NumMethod() {
		for _, got := range v.Method(i).Call(nil) {
			if !got.IsZero() {
				t.Errorf("%s of the zero permit is %v", v.Type().Method(i).Name, got)
			}
		}
	}
	if v.NumMethod() < 10 {
		t.Errorf("a permit has only %d methods", v.NumMethod())
	}
	if (&Policy{}).Rules() != nil || (*Policy)(nil).Rules() != nil {
		t.Error("a policy without rules lists some")
	}
	var p PathPattern
	var h HostPattern
	if p.Match("/") || p.Match("") || h.Match(host(t, "a.test")) || h.Match(gate.Host{}) || h.String() != "" {
		t.Error("a zero pattern matches")
	}
	if pattern(t, "*").Match(gate.Host{}) {
		t.Error("every name includes none")
	}
}

func TestPermitSaysWhatWasAllowed(t *testing.T) {
	r := allow(t, "a.test")
	name, err := gate.ParseCredentialName("key")
	must(t, name, err)
	slot, err := NewHeaderSlot("authorization", "Bearer {}")
	must(t, slot, err)
	r.Inject = Injection{Mode: InjectSet, Credential: name, Slots: []Slot{slot}}
	r.Address, r.MaxBody = netip.MustParsePrefix("10.0.0.0/8"), 42
	p := compiled(t, r)
	d := p.Decide(subject(), request(t, "a.test", "POST /x"))
	g := d.Permit
	if d.Verdict != Allow || d.Reason != gate.ReasonAllowed || d.Rule != r.Name || !g.Valid() || g.Session() != subject().Session || g.Kind() != Request || g.Scheme() != gate.HTTPS ||
		g.Host().String() != "a.test" || g.Port() != 443 || g.Injection().Credential != name || g.Injection().Slots[0] != slot || g.Address() != r.Address || g.MaxBody() != 42 || g.KeepClientCredentials() || g.Git() != git.NotGit || g.Mode() != NoMode {
		t.Errorf("%+v", d)
	}
	if d := p.Decide(subject(), connect(t, "a.test")); d.Mode != Intercept || d.Permit.Mode() != Intercept || d.Permit.Kind() != Connect {
		t.Errorf("%+v", d)
	}
	// A policy does not change with what it was made of, nor with what it lists.
	r.Inject.Slots[0] = Slot{}
	p.Rules()[0].Effect = Deny
	if d := p.Decide(subject(), request(t, "a.test", "POST /x")); d.Verdict != Allow || d.Permit.Injection().Slots[0] != slot {
		t.Errorf("the policy changed: %+v", d)
	}
}

func TestDenyWinsWhereverItStands(t *testing.T) {
	narrow := deny(t, "*.a.test")
	narrow.Paths = paths(t, "/admin/**")
	for name, rules := range map[string][]Rule{
		"before": {narrow, allow(t, "x.a.test"), allow(t, "*")},
		"behind": {allow(t, "x.a.test"), allow(t, "*"), narrow},
	} {
		p := compiled(t, rules...)
		for line, want := range map[string]Verdict{
			"GET /": Allow, "GET /administrator": Allow, "GET /admin": Deny, "POST /admin/x": Deny, "GET /admin;a=b/x": Deny, "GET /admin/x;y": Deny, "GET /%61dmin/x": Deny, "GET /admin%3bx/y": Deny, "GET /x;/admin": Allow,
		} {
			d := p.Decide(subject(), request(t, "x.a.test", line))
			if d.Verdict != want || want == Deny && (d.Reason != gate.ReasonRuleDenies || d.Rule != narrow.Name || d.Permit.Valid()) {
				t.Errorf("%s: %s: %+v", name, line, d)
			}
		}
		if d := p.Decide(subject(), connect(t, "x.a.test")); d.Verdict != Allow {
			t.Errorf("%s: a deny of some paths denies the connection", name)
		}
		if d := p.Decide(subject(), request(t, "a.test", "GET /admin/x")); d.Verdict != Allow {
			t.Errorf("%s: a deny below a name denies the name", name)
		}
	}
	if d := compiled(t, allow(t, "a.test"), deny(t, "a.test")).Decide(subject(), connect(t, "a.test")); d.Verdict != Deny || d.Reason != gate.ReasonRuleDenies {
		t.Errorf("a deny of everything allows the connection: %+v", d)
	}
}

func TestDenySeesThroughEncodedSlashes(t *testing.T) {
	open, closed := allow(t, "a.test"), deny(t, "a.test")
	open.EncodedSlash, closed.Paths = true, paths(t, "/admin/**")
	p := compiled(t, open, closed)
	for line, want := range map[string]Verdict{"GET /admin%2Fx": Deny, "GET /admin%2fx/y": Deny, "GET /x;%2Fadmin": Allow, "GET /admin;x%2Fy": Deny, "GET /x%2Fy": Allow, "GET /admin%2F": Deny} {
		if d := p.Decide(subject(), request(t, "a.test", line)); d.Verdict != want {
			t.Errorf("%s: %s", line, d.Verdict)
		}
	}
}

func TestDenyOfARepositoryCoversAllBelowIt(t *testing.T) {
	closed := deny(t, "github.com")
	closed.Repo = repo(t, "github.com/acme/widgets")
	p := compiled(t, allow(t, "github.com"), closed)
	for line, want := range map[string]Verdict{
		"GET /acme/widgets": Deny, "GET /Acme/Widgets/blob/main/x": Deny, "GET /acme/widgets.git/info/refs": Deny, "POST /acme/widgets.git/git-receive-pack": Deny, "POST /acme/widgets/git-receive-pack?x=1": Deny,
		"POST /acme/widgets.GIT/git-upload-pack": Deny, "GET /acme/widgets;x/info/refs?service=git-upload-pack": Deny,
		"GET /acme/widgets2": Allow, "GET /acme/widgets.wiki/x": Allow, "GET /acme": Allow, "POST /acme/other/git-upload-pack": Allow, "GET /x/acme/widgets": Allow,
	} {
		if d := p.Decide(subject(), request(t, "github.com", line)); d.Verdict != want {
			t.Errorf("%s: %s", line, d.Verdict)
		}
	}
}

func TestRefusalNamesTheNearestMiss(t *testing.T) {
	some := allow(t, "a.test")
	some.Methods, some.Paths = gate.Methods(gate.GET), paths(t, "/v1/**")
	forge := allow(t, "github.com")
	forge.Repo = repo(t, "github.com/acme/widgets")
	pass := allow(t, "pass.test")
	pass.TLS = Tunnel
	p := compiled(t, some, forge, pass)
	upgrade := request(t, "a.test", "GET /v1/x")
	upgrade.Upgrade = true
	gitUpgrade := request(t, "github.com", "POST /acme/widgets/git-upload-pack")
	gitUpgrade.Upgrade = true
	clear, port := request(t, "a.test", "GET /v1/x"), request(t, "a.test", "GET /v1/x")
	clear.Scheme, clear.Port, port.Port = gate.HTTP, 80, 8443
	for name, c := range map[string]struct {
		a    Action
		want gate.Reason
	}{
		"host":        {request(t, "b.test", "GET /v1/x"), gate.ReasonHostNotListed},
		"below":       {request(t, "x.a.test", "GET /v1/x"), gate.ReasonHostNotListed},
		"scheme":      {clear, gate.ReasonSchemeNotListed},
		"port":        {port, gate.ReasonPortNotListed},
		"path":        {request(t, "a.test", "GET /v2/x"), gate.ReasonPathNotListed},
		"method":      {request(t, "a.test", "POST /v1/x"), gate.ReasonMethodNotListed},
		"slash":       {request(t, "a.test", "GET /v1/a%2Fb"), gate.ReasonEncodedSlash},
		"upgrade":     {upgrade, gate.ReasonUpgradeNotListed},
		"repo":        {request(t, "github.com", "POST /acme/other/git-upload-pack"), gate.ReasonRepoNotListed},
		"push":        {request(t, "github.com", "POST /acme/widgets/git-receive-pack"), gate.ReasonPushNotListed},
		"pushing":     {request(t, "github.com", "GET /acme/widgets/info/refs?service=git-receive-pack"), gate.ReasonPushNotListed},
		"git upgrade": {gitUpgrade, gate.ReasonUpgradeNotListed},
		"not git":     {request(t, "github.com", "GET /acme/widgets"), gate.ReasonPathNotListed},
		"tunnel":      {request(t, "pass.test", "GET /"), gate.ReasonPathNotListed},
	} {
		d := p.Decide(subject(), c.a)
		if d.Verdict != Deny || d.Reason != c.want || d.Rule != "" || d.Permit.Valid() {
			t.Errorf("%s: %s, want %s", name, d.Reason, c.want)
		}
	}
	if d := p.Decide(subject(), connect(t, "pass.test")); d.Verdict != Allow || d.Mode != Tunnel || d.Permit.Mode() != Tunnel {
		t.Errorf("tunnel: %+v", d)
	}
	if d := p.Decide(subject(), request(t, "github.com", "POST /acme/widgets.git/git-upload-pack")); d.Verdict != Allow || d.Permit.Git() != git.Fetch {
		t.Errorf("fetch: %+v", d)
	}
}

// draws of rules and actions over a universe so small that they meet.

// TestHostilePathsDoNotBlowUp: each of these takes a backtracking matcher longer than the test may run.

// manyRules are n rules over n/10 hosts, half of them below a wildcard, with paths and methods.
