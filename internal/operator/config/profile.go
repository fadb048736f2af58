package config

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
	"postern/internal/operator/ruleset"
	"postern/internal/operator/strictyaml"
)

// profile compiles one profile.
type profile struct {
	*compiler
	src     *profileSource
	out     *Compiled
	presets []*preset.Preset // used, bound to their credentials
	places  []strictyaml.Pos // of each rule so far, in the policy file
	shapes  map[gate.CredentialName]preset.Shape
	owner   map[string]string // who set a variable or file: a preset's name, or "" for the profile itself
}

func (p *profile) compile() {
	p.usePresets()
	p.gitRules()
	for i := range p.src.Allow {
		a := &p.src.Allow[i]
		p.addRule(a.Compile(p.lineLabel(a.Pos()), p.r), a.Pos())
	}
	for i, ps := range p.presets {
		for _, a := range ps.Allow {
			a.CredentialAt = p.src.Use[i].Pos()
			p.addRule(a, p.src.Use[i].Pos())
		}
	}
	p.denyRules()
	p.checkAmbiguity()
	p.checkSources()
	p.environment()
	p.placeholders()
	p.manners()
	if n := len(p.out.Rules); n > maxRules {
		p.r.Add(p.src.Pos(), "", "more than %d rules in one profile", maxRules)
		return
	}
	if p.r.Count() > 0 {
		return
	}
	var err error
	if p.out.Policy, err = policy.Compile(p.out.Rules); err != nil {
		p.r.Add(p.src.Pos(), "", "%s", err)
	}
}

func (p *profile) lineLabel(at strictyaml.Pos) string { return p.label + ":" + strconv.Itoa(at.Line) }

// usePresets loads the presets under use: and binds their credentials.
func (p *profile) usePresets() {
	seen := map[string]bool{}
	for i := range p.src.Use {
		u := &p.src.Use[i]
		loaded := p.loadPreset(u)
		if loaded == nil {
			p.presets = append(p.presets, &preset.Preset{})
			continue
		}
		if seen[loaded.Name] {
			p.r.Add(u.Key("preset"), "remove one of the two", "this preset stands twice")
		}
		seen[loaded.Name] = true
		p.presets = append(p.presets, p.bind(u, loaded))
	}
}

func (p *profile) bind(u *useSource, ps *preset.Preset) *preset.Preset {
	if ps.Credential == nil {
		if u.Credential != nil {
			p.r.Add(u.Key("credential"), "remove it", "this preset uses no credential")
		}
		return ps
	}
	if u.Credential != nil {
		ps = ps.Bind(u.Credential.Name)
	}
	name := ps.Credential.Name
	if _, ok := p.credentials[name]; ok {
		p.addShape(name, ps.Credential.Shape, u.Pos())
		return ps
	}
	example := name.String() + ": {kind: api-key, source: {file: ~/.config/postern/" + name.String() + "}}"
	switch {
	case u.Credential != nil:
		p.r.Add(u.Key("credential"), p.didYouMeanCredential(name), "unknown credential%s", strictyaml.Word(name.String()))
	case ps.Credential.Required:
		p.r.Add(u.Pos(), "add under `credentials:`  "+example, "preset%s needs the credential%s", strictyaml.Word(ps.Name), strictyaml.Word(name.String()))
	default:
		p.out.Warnings = append(p.out.Warnings, p.lineLabel(u.Pos())+": preset "+ps.Name+" works without a credential; to use one, declare "+name.String()+" under credentials:")
		return ps.Without()
	}
	return ps
}

// addShape gives a credential its placeholder's shape; the credential's own declaration wins over presets.
func (p *profile) addShape(name gate.CredentialName, s preset.Shape, at strictyaml.Pos) {
	if _, own := p.compiler.shapes[name]; own || s.Text == "" {
		return
	}
	if old, ok := p.shapes[name]; ok && old.Text != s.Text {
		p.r.Add(at, "give one of the two presets another credential, or the credential a `placeholder:` of its own", "two presets want different placeholders for one credential")
		return
	}
	p.shapes[name] = s
}

func (p *profile) didYouMeanCredential(name gate.CredentialName) string {
	var names []string
	for n := range p.credentials {
		names = append(names, n.String())
	}
	slices.Sort(names)
	if hint := strictyaml.DidYouMean(name.String(), names); hint != "" {
		return hint
	}
	return "declare it under `credentials:`"
}

// loadPreset finds a preset: an embedded one, one of the user's own by name, or a file below the policy's directory.
func (p *profile) loadPreset(u *useSource) *preset.Preset {
	if ps, ok := p.loader.presets[u.Preset]; ok {
		return ps
	}
	ps, err := p.findPreset(u.Preset)
	var unknown *preset.UnknownError
	var list Errors
	var one *Error
	switch {
	case err == nil:
	case errors.As(err, &unknown):
		hint := unknown.Hint
		if hint == "" {
			hint = "presets: " + strings.Join(preset.Names(), ", ")
		}
		p.r.Add(u.Key("preset"), hint, "unknown preset%s", strictyaml.Word(u.Preset))
	case errors.As(err, &list):
		p.presetErrs = append(p.presetErrs, list)
	case errors.Is(err, fs.ErrNotExist):
		p.r.Add(u.Key("preset"), "the path begins at the directory of the policy file", "no such preset file")
	case errors.Is(err, ErrNotTrusted), errors.As(err, &one):
		p.presetErrs = append(p.presetErrs, err)
	default:
		p.r.AddErr(u.Key("preset"), err)
	}
	if err != nil {
		ps = nil
	}
	p.loader.presets[u.Preset] = ps
	return ps
}

func (p *profile) findPreset(name string) (*preset.Preset, error) {
	if rel, ok := strings.CutPrefix(name, "./"); ok {
		base, isYAML := strings.CutSuffix(filepath.Base(rel), ".yaml")
		if !isYAML || !filepath.IsLocal(rel) || filepath.Clean(rel) != rel {
			return nil, &strictyaml.Fault{Msg: "not the path of a preset", Hint: "a file below this file's directory: ./NAME.yaml"}
		}
		return p.readPreset(base, filepath.Join(p.dir, rel))
	}
	if strings.ContainsAny(name, "/~") || strings.HasSuffix(name, ".yaml") {
		return nil, &strictyaml.Fault{Msg: "not a preset", Hint: "the name of one, or a file below this file's directory: ./NAME.yaml"}
	}
	if _, err := gate.ParseCredentialName(name); err != nil {
		return nil, &preset.UnknownError{}
	}
	builtin := p.builtin(name)
	own, ownErr := p.readPreset(name, filepath.Join(p.config, "presets", name+".yaml"))
	switch {
	case errors.Is(ownErr, fs.ErrNotExist) && builtin == nil:
		return nil, &preset.UnknownError{Hint: strictyaml.DidYouMean(name, preset.Names())}
	case errors.Is(ownErr, fs.ErrNotExist):
		return builtin, nil
	case builtin != nil:
		return nil, &strictyaml.Fault{Msg: "postern has a preset of this name, and so have you", Hint: "rename yours in the configuration directory"}
	}
	return own, ownErr
}

// builtin is an embedded preset, read once a file. A test holds that all of them load.
func (l *loader) builtin(name string) *preset.Preset {
	if ps, ok := l.embedded[name]; ok {
		return ps
	}
	ps, err := preset.Load(name)
	if err != nil {
		ps = nil
	}
	l.embedded[name] = ps
	return ps
}

func (p *profile) readPreset(name, path string) (*preset.Preset, error) {
	src, err := p.read(path)
	if err != nil {
		return nil, err
	}
	return preset.Parse(name, p.shown(path), src)
}

func (p *profile) gitRules() {
	for _, g := range p.src.Git {
		rule := policy.Rule{
			Name: p.lineLabel(g.Pos()), Effect: policy.Allow, Host: policy.ExactHost(g.Repo.Repo.Host()), Scheme: gate.HTTPS, Port: gate.HTTPS.DefaultPort(),
			Methods: gate.Methods(gate.GET, gate.POST), Repo: g.Repo.Repo, Push: g.Push, TLS: policy.Intercept,
		}
		if g.Credential == nil {
			if g.User != nil {
				p.r.Add(g.Key("user"), "remove it", "user belongs to credential")
			}
			if g.Push {
				p.out.Warnings = append(p.out.Warnings, rule.Name+": a push without credential: no forge accepts one")
			}
		} else {
			user := forgeUser(rule.Host)
			if g.User != nil {
				user = *g.User
			}
			slot, err := policy.NewBasicSlot(user)
			if err != nil {
				p.r.Add(g.Key("user"), "", "%s", err)
			}
			rule.Inject = policy.Injection{Mode: policy.InjectSet, Credential: g.Credential.Name, Slots: []policy.Slot{slot}}
		}
		p.addRule(ruleset.Compiled{Rule: rule, At: g.At, CredentialAt: g.Key("credential")}, g.Pos())
		p.addVoice(rule.Host, policy.VoiceGit)
		if !slices.Contains(p.out.H1Only, rule.Host) {
			p.out.H1Only = append(p.out.H1Only, rule.Host)
		}
	}
}

// forgeUser is the user name that a forge wants beside a token (GIT.md). Most take any.
func forgeUser(host policy.HostPattern) string {
	switch host.String() {
	case "gitlab.com":
		return "oauth2"
	case "bitbucket.org":
		return "x-token-auth"
	}
	return "x-access-token"
}

// addRule takes one allow rule, whose line is at, and checks its credential.
func (p *profile) addRule(c ruleset.Compiled, at strictyaml.Pos) {
	p.out.Rules = append(p.out.Rules, c.Rule)
	p.places = append(p.places, at)
	for _, r := range c.Relaxations {
		p.out.Relaxations = append(p.out.Relaxations, Relaxation{Rule: c.Rule.Name, Relaxation: r})
	}
	in := c.Rule.Inject
	if in.Mode == policy.InjectNone || in.Credential.IsZero() {
		return
	}
	cred, ok := p.credentials[in.Credential]
	if !ok {
		if !slices.ContainsFunc(p.presets, func(ps *preset.Preset) bool { return ps.Credential != nil && ps.Credential.Name == in.Credential }) {
			p.r.Add(c.CredentialAt, p.didYouMeanCredential(in.Credential), "unknown credential%s", strictyaml.Word(in.Credential.String()))
		}
		return
	}
	p.out.Credentials[in.Credential] = cred
	if !slotsSuit(cred.Kind, in) {
		p.r.Add(c.CredentialAt, "use `basic: USER`, or make the credential's kind api-key", "a credential of kind basic goes only into basic authentication")
	}
	if _, shaped := p.shapes[in.Credential]; in.Mode == policy.InjectSwap && !shaped {
		p.r.Add(c.CredentialAt, "add `placeholder: \"{alnum:40}\"` to the credential, and give it to the sandbox under `env:`; or use inject", "swap needs a placeholder for its credential")
	}
}

// checkSources refuses a credential's file that the sandbox would see through a mount: it could read it, or put a link in its place.
func (p *profile) checkSources() {
	mounts := p.out.Mounts
	if mounts == nil && !below(p.home, p.work) {
		mounts = []Mount{{Path: p.work}} // a mount of the home directory is the sandbox's to refuse
	}
	for _, name := range sorted(p.compiler.src.Credentials) {
		s := p.compiler.src.Credentials[name]
		file := s.Source.File.in(p.dir, p.home)
		n, err := gate.ParseCredentialName(name)
		if _, used := p.out.Credentials[n]; err != nil || !used || file == "" {
			continue
		}
		if slices.ContainsFunc(mounts, func(m Mount) bool { return below(file, m.Path) }) {
			p.r.Add(s.Source.Key("file"), "keep it outside of what is mounted: ~/.config/postern/", "a sandbox would see this file: it lies in what the profile%s mounts", strictyaml.Word(p.out.Name))
		}
	}
}

// below reports whether path is dir or lies in it; both are clean and absolute.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func (p *profile) denyRules() {
	open := endpoints(p.out.Rules)
	if len(open) > maxEndpoints {
		p.r.Add(p.src.Pos(), "", "more than %d different ports in one profile", maxEndpoints)
		return
	}
	add := func(d *ruleset.Deny, label string) {
		if len(p.out.Rules) <= maxRules {
			p.out.Rules = append(p.out.Rules, d.Compile(label, open)...)
		}
	}
	for i := range p.src.Deny {
		add(&p.src.Deny[i], p.lineLabel(p.src.Deny[i].Pos()))
	}
	for _, ps := range p.presets {
		for i := range ps.Deny {
			add(&ps.Deny[i].Line, ps.Deny[i].Label)
		}
	}
}

// checkAmbiguity finds requests for which chance would choose the credential.
func (p *profile) checkAmbiguity() {
	var cmp ruleset.Comparer
	for i := range p.places {
		if p.out.Rules[i].Inject.Mode == policy.InjectNone {
			continue
		}
		for j := range i {
			a, b := p.out.Rules[j], p.out.Rules[i]
			if cmp.Ambiguous(a, b) {
				p.r.Add(p.places[i], "give the two lines different `paths:` or `methods:`, or put an exception before the rule it is an exception of",
					"two credentials for the same requests: this line gives%s, %s gives%s", strictyaml.Word(b.Inject.Credential.String()), a.Name, strictyaml.Word(a.Inject.Credential.String()))
			}
		}
		if cmp.Exhausted() {
			p.r.Add(p.src.Pos(), "split the profile", "too many paths on rules with credentials to compare")
			return
		}
	}
}

// manners are how hosts are refused and spoken to; embedded presets teach them whether they are used or not.
func (p *profile) manners() {
	add := func(ps *preset.Preset) {
		for host, v := range ps.Voices {
			p.addVoice(host, v)
		}
		for _, h := range ps.H1Only {
			if !slices.Contains(p.out.H1Only, h) {
				p.out.H1Only = append(p.out.H1Only, h)
			}
		}
	}
	for _, ps := range p.presets {
		add(ps)
	}
	for _, name := range preset.Names() {
		if ps := p.builtin(name); ps != nil {
			add(ps)
		}
	}
	slices.SortFunc(p.out.Voices, exactFirst)
}

// addVoice keeps the first voice of a host.
func (p *profile) addVoice(host policy.HostPattern, v policy.Voice) {
	if !slices.ContainsFunc(p.out.Voices, func(h HostVoice) bool { return h.Host == host }) {
		p.out.Voices = append(p.out.Voices, HostVoice{host, v})
	}
}

// exactFirst orders voices: names before wildcards, longer wildcards before shorter, so that the first match is the nearest.
func exactFirst(a, b HostVoice) int {
	_, ae := a.Host.Exact()
	_, be := b.Host.Exact()
	switch {
	case ae && !be:
		return -1
	case be && !ae:
		return 1
	}
	if d := len(b.Host.String()) - len(a.Host.String()); d != 0 {
		return d
	}
	return strings.Compare(a.Host.String(), b.Host.String())
}

// sorted gives a map's keys in order, so that errors and results do not depend on chance.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
