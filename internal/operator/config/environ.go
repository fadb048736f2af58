package config

import (
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
	"postern/internal/operator/strictyaml"
)

// environment collects variables and files: the profile's own win over presets, presets must agree among themselves.
func (p *profile) environment() {
	for _, name := range sorted(p.src.Env) {
		p.ownVariable(name, p.src.Env[name], p.src.Key("env."+name))
	}
	for i, ps := range p.presets {
		at := p.src.Use[i].Pos()
		for _, name := range sorted(ps.Env) {
			if old, set := p.out.Env[name]; !set {
				p.out.Env[name], p.owner[name] = ps.Env[name], ps.Name
			} else if p.owner[name] != "" && old.String() != ps.Env[name].String() {
				p.r.Add(at, "set it yourself under `env:`", "preset%s and preset%s set the same variable differently", strictyaml.Word(p.owner[name]), strictyaml.Word(ps.Name))
			}
		}
		for _, f := range ps.Files {
			j := slices.IndexFunc(p.out.Files, func(g preset.File) bool { return g.Path == f.Path })
			switch {
			case j < 0:
				p.out.Files = append(p.out.Files, f)
			case p.out.Files[j].Content.String() != f.Content.String() || p.out.Files[j].Mode != f.Mode:
				p.r.Add(at, "use one of the two", "two presets write the same file differently")
			}
		}
		for _, t := range ps.Tools {
			if !slices.Contains(p.out.Tools, t) {
				p.out.Tools = append(p.out.Tools, t)
			}
		}
	}
}

func (p *profile) ownVariable(name string, t preset.Template, at strictyaml.Pos) {
	if !preset.ValidEnvName(name) {
		p.r.Add(at, "letters, digits and '_', not beginning with a digit", "not a variable's name")
	}
	if secretName(name) && len(t.Credentials()) == 0 && !plainValue(t.String()) {
		p.r.Add(at, "declare the credential under `credentials:` with a `placeholder:`, and write \"{placeholder:NAME}\" here", "this looks like a credential; the sandbox is given a placeholder instead")
	}
	for _, c := range t.Credentials() {
		if _, ok := p.credentials[c]; !ok {
			p.r.Add(at, p.didYouMeanCredential(c), "unknown credential%s", strictyaml.Word(c.String()))
		} else if _, shaped := p.shapes[c]; !shaped {
			p.r.Add(at, "add `placeholder: \"{alnum:40}\"` to the credential", "this credential has no placeholder")
		}
	}
	p.out.Env[name], p.owner[name] = t, ""
}

// secretName reports whether variables of such a name hold credentials.
func secretName(name string) bool {
	upper := strings.ToUpper(name)
	for _, end := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "CREDENTIAL", "CREDENTIALS", "_PAT", "_AUTH"} {
		if strings.HasSuffix(upper, end) {
			return true
		}
	}
	return false
}

// plainValue reports whether a value is too short or too plain to be a credential: a word, a number, a path or a URL.
func plainValue(v string) bool {
	if len(v) < 8 || strings.HasPrefix(v, "/") || strings.HasPrefix(v, "./") || strings.HasPrefix(v, "~/") || strings.Contains(v, "://") {
		return true
	}
	digit, letter := false, false
	for i := 0; i < len(v); i++ {
		c := v[i] | 0x20
		digit = digit || v[i] >= '0' && v[i] <= '9'
		letter = letter || c >= 'a' && c <= 'z'
	}
	return !digit || !letter
}

// placeholders lists one placeholder for each credential that a preset or the profile gives to the sandbox.
func (p *profile) placeholders() {
	at := map[gate.CredentialName]int{}
	entry := func(name gate.CredentialName) *preset.Placeholder {
		i, ok := at[name]
		if !ok {
			i = len(p.out.Placeholders)
			at[name] = i
			p.out.Placeholders = append(p.out.Placeholders, preset.Placeholder{Credential: name, Shape: p.shapes[name]})
		}
		return &p.out.Placeholders[i]
	}
	for _, name := range sorted(p.out.Env) {
		for _, c := range p.out.Env[name].Credentials() {
			e := entry(c)
			e.Env = append(e.Env, name)
		}
	}
	for _, f := range p.out.Files {
		for _, c := range f.Content.Credentials() {
			e := entry(c)
			e.Files = append(e.Files, f.Path)
		}
	}
	p.warnUnused(at)
}

// warnUnused names what is declared or given without effect.
func (p *profile) warnUnused(given map[gate.CredentialName]int) {
	swapped := map[gate.CredentialName]bool{}
	for i := range p.places {
		if in := p.out.Rules[i].Inject; in.Mode != policy.InjectNone {
			swapped[in.Credential] = true
		}
	}
	for _, ph := range p.out.Placeholders {
		if !swapped[ph.Credential] {
			p.out.Warnings = append(p.out.Warnings, p.label+": the sandbox is given a placeholder of "+ph.Credential.String()+", but no rule of this profile takes it")
		}
	}
	for i := range p.places {
		in := p.out.Rules[i].Inject
		if _, ok := given[in.Credential]; !ok && in.Mode == policy.InjectSwap {
			p.out.Warnings = append(p.out.Warnings, p.out.Rules[i].Name+": swap replaces a placeholder that the sandbox is never given; add it under env:")
		}
	}
}
