// Package preset knows what well-known clients and package managers need: hosts, methods and paths, where a credential travels,
// and what the sandbox is given in its place. A preset is a YAML file; those of postern are embedded, and people write their own
// (docs/guide/presets.md). A preset allows only what its lines say; it never holds a credential.
package preset

import (
	"embed"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/placeholder"
	"postern/internal/core/policy"
	"postern/internal/operator/ruleset"
	"postern/internal/operator/strictyaml"
)

//go:embed *.yaml
var embedded embed.FS

// Preset is one preset, read and checked. It is never changed: Bind makes a copy.
type Preset struct {
	Name       string
	Summary    string      // one line for people
	Credential *Credential // nil: the preset needs none
	Allow      []ruleset.Compiled
	Deny       []Deny
	Env        map[string]Template
	Files      []File
	Tools      []string // paths below home that are mounted read-only when they exist
	Voices     map[policy.HostPattern]policy.Voice
	H1Only     []policy.HostPattern // hosts whose clients are never offered HTTP/2
}

// Credential is what a preset asks of the policy file.
type Credential struct {
	Name     gate.CredentialName
	Required bool // without it the preset makes no sense; otherwise its rules work without a credential
	Shape    Shape
}

// Placeholder is one stand-in that a session makes: random, of the credential's shape, and worth nothing elsewhere.
type Placeholder struct {
	Credential gate.CredentialName // what it stands for
	Shape      Shape
	Env        []string // variables that hold it
	Files      []string // files below home that hold it
}

// Deny is one deny line with its name for people.
type Deny struct {
	Line  ruleset.Deny
	Label string
}

// File is a file that the sandbox's home begins with.
type File struct {
	Path    string // below home, slash-separated, clean
	Content Template
	Mode    fs.FileMode // permission bits
}

// Names lists the embedded presets in alphabetical order.
func Names() []string {
	entries, err := embedded.ReadDir(".")
	if err != nil {
		return nil // an embedded directory is always readable
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Source is the text of an embedded preset, nil when there is none of that name.
func Source(name string) []byte {
	if !slices.Contains(Names(), name) {
		return nil
	}
	src, err := embedded.ReadFile(name + ".yaml")
	if err != nil {
		return nil
	}
	return src
}

// Load reads an embedded preset. The error is an *UnknownError or a strictyaml.Errors.
func Load(name string) (*Preset, error) {
	src := Source(name)
	if src == nil {
		return nil, &UnknownError{Hint: strictyaml.DidYouMean(name, Names())}
	}
	return Parse(name, "preset "+name, src)
}

// UnknownError says that no preset has the name that was asked for.
type UnknownError struct{ Hint string }

func (e *UnknownError) Error() string { return "no preset has this name" }

// source is a preset as it is written.
type source struct {
	strictyaml.At `json:"-"`

	Name       string              `json:"name" jsonschema:"the name under use:, the same as the file's"`
	Summary    string              `json:"summary" jsonschema:"one line for people"`
	Credential *credentialSource   `json:"credential,omitempty" jsonschema:"the credential that the preset asks for"`
	Allow      []ruleset.Allow     `json:"allow,omitempty" jsonschema:"as in a policy file"`
	Deny       []ruleset.Deny      `json:"deny,omitempty" jsonschema:"as in a policy file"`
	Env        map[string]Template `json:"env,omitempty" jsonschema:"environment variables of the sandbox"`
	Files      []fileSource        `json:"files,omitempty" jsonschema:"files that the sandbox's home begins with"`
	Tools      []HomePath          `json:"tools,omitempty" jsonschema:"paths below home, mounted read-only when they exist"`
	Voices     map[string]voice    `json:"voices,omitempty" jsonschema:"the shape of refusals, by host"`
	H1Only     []ruleset.Host      `json:"h1_only,omitempty" jsonschema:"hosts that are never offered HTTP/2"`
}

type credentialSource struct {
	strictyaml.At `json:"-"`

	Name        ruleset.CredentialName `json:"name" jsonschema:"its name under credentials: in the policy file"`
	Required    bool                   `json:"required,omitempty" jsonschema:"the preset makes no sense without it"`
	Placeholder Shape                  `json:"placeholder,omitempty" jsonschema:"the shape of what the sandbox is given in its place"`
}

type fileSource struct {
	strictyaml.At `json:"-"`

	Path    HomePath `json:"path" jsonschema:"below home"`
	Mode    Mode     `json:"mode,omitempty" jsonschema:"0600 when absent"`
	Content Template `json:"content" jsonschema:"text; {placeholder:NAME} stands for the session's placeholder"`
}

// maxLines bounds the lists of one preset.
const maxLines = 256

// Parse reads a preset. name is what it must call itself; label is how errors and rules call the file. The error is a strictyaml.Errors.
func Parse(name, label string, src []byte) (*Preset, error) {
	var s source
	if err := strictyaml.Decode(label, src, &s); err != nil {
		return nil, err
	}
	r := &strictyaml.Report{File: label}
	p := s.compile(name, label, r)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (s *source) compile(name, label string, r *strictyaml.Report) *Preset {
	p := &Preset{Name: s.Name, Summary: s.Summary, Env: s.Env, Voices: map[policy.HostPattern]policy.Voice{}}
	if s.Name != name {
		r.Add(s.Key("name"), "the name of a preset is its file's name without .yaml", "not the file's name")
	}
	if len(s.Allow)+len(s.Deny)+len(s.Files)+len(s.Tools)+len(s.Env)+len(s.Voices) > maxLines {
		r.Add(s.Pos(), "", "more than %d lines", maxLines)
		return p
	}
	if s.Credential != nil {
		p.Credential = &Credential{Name: s.Credential.Name.Name, Required: s.Credential.Required, Shape: s.Credential.Placeholder}
	}
	for i := range s.Allow {
		c := s.Allow[i].Compile(lineLabel(label, s.Allow[i].At), r)
		s.checkInjection(c, r)
		p.Allow = append(p.Allow, c)
	}
	for _, d := range s.Deny {
		p.Deny = append(p.Deny, Deny{d, lineLabel(label, d.At)})
	}
	for _, f := range s.Files {
		mode := f.Mode.Mode
		if mode == 0 {
			mode = 0o600
		}
		p.Files = append(p.Files, File{f.Path.Path, f.Content, mode})
		s.checkTemplate(f.Content, f.Key("content"), r)
	}
	for _, t := range s.Tools {
		p.Tools = append(p.Tools, t.Path)
	}
	for name, t := range s.Env {
		if !ValidEnvName(name) {
			r.Add(s.Key("env"), "letters, digits and '_', not beginning with a digit", "env: not a variable's name")
		}
		s.checkTemplate(t, s.Key("env"), r)
	}
	for host, v := range s.Voices {
		pattern, err := policy.ParseHostPattern(host)
		if err != nil {
			r.Add(s.Key("voices"), "", "voices: a key that is no host")
			continue
		}
		p.Voices[pattern] = v.Voice
	}
	for _, h := range s.H1Only {
		p.H1Only = append(p.H1Only, h.Pattern)
	}
	return p
}

// checkInjection holds a rule's credential against the preset's own.
func (s *source) checkInjection(c ruleset.Compiled, r *strictyaml.Report) {
	in := c.Rule.Inject
	if in.Mode == policy.InjectNone {
		return
	}
	switch {
	case s.Credential == nil || s.Credential.Name.Name != in.Credential:
		r.Add(c.At.Pos(), "name it under the preset's `credential:`", "a credential that the preset does not ask for")
	case in.Mode == policy.InjectSwap && !s.Credential.Has("placeholder"):
		r.Add(s.Key("credential"), `for example: placeholder: "tok_{alnum:32}"`, "swap needs a placeholder for this credential")
	}
}

func (s *source) checkTemplate(t Template, at strictyaml.Pos, r *strictyaml.Report) {
	for _, c := range t.Credentials() {
		if s.Credential == nil || s.Credential.Name.Name != c || !s.Credential.Has("placeholder") {
			r.Add(at, "", "a placeholder of a credential that the preset does not ask for")
		}
	}
}

// lineLabel names a line for people: "preset claude:14", "postern.yaml:23".
func lineLabel(label string, at strictyaml.At) string {
	return label + ":" + strconv.Itoa(at.Pos().Line)
}

// Bind is the preset with its credential under another name of the policy file.
func (p *Preset) Bind(name gate.CredentialName) *Preset {
	if p.Credential == nil || p.Credential.Name == name {
		return p
	}
	old, c := p.Credential.Name, *p.Credential
	c.Name = name
	out := *p
	out.Credential = &c
	out.Allow = slices.Clone(p.Allow)
	for i := range out.Allow {
		if out.Allow[i].Rule.Inject.Credential == old {
			out.Allow[i].Rule.Inject.Credential = name
		}
	}
	out.Env = make(map[string]Template, len(p.Env))
	for k, t := range p.Env {
		out.Env[k] = t.rebind(old, name)
	}
	out.Files = slices.Clone(p.Files)
	for i := range out.Files {
		out.Files[i].Content = out.Files[i].Content.rebind(old, name)
	}
	return &out
}

// Without is the preset when its optional credential does not exist: no rule injects, and nothing that would hold a placeholder is given.
func (p *Preset) Without() *Preset {
	out := *p
	out.Credential = nil
	out.Allow = slices.Clone(p.Allow)
	for i := range out.Allow {
		out.Allow[i].Rule.Inject = policy.Injection{}
	}
	out.Env = make(map[string]Template, len(p.Env))
	for k, t := range p.Env {
		if len(t.Credentials()) == 0 {
			out.Env[k] = t
		}
	}
	out.Files = slices.DeleteFunc(slices.Clone(p.Files), func(f File) bool { return len(f.Content.Credentials()) > 0 })
	return &out
}

// ValidEnvName reports whether name can be an environment variable's: a letter or '_', then letters, digits and '_', at most 128.
func ValidEnvName(name string) bool {
	if name == "" || len(name) > 128 || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}

// HomePath is a path below the home directory.
type HomePath struct{ Path string }

// ParseScalar reads a clean relative path without "..".
func (h *HomePath) ParseScalar(text string) error {
	if text == "" || len(text) > 1024 || path.IsAbs(text) || path.Clean(text) != text || text == "." || text == ".." || strings.HasPrefix(text, "../") || strings.HasPrefix(text, "~") || strings.ContainsAny(text, "\n\t") {
		return &strictyaml.Fault{Msg: "not a clean path below home", Hint: "for example: .config/tool/settings.json"}
	}
	h.Path = text
	return nil
}

// Mode is the permission bits of a file.
type Mode struct{ Mode fs.FileMode }

// ParseScalar reads one of the modes that a file of a home has.
func (m *Mode) ParseScalar(text string) error {
	modes := map[string]fs.FileMode{"0600": 0o600, "0644": 0o644, "0700": 0o700, "0755": 0o755}
	v, ok := modes[text]
	if !ok {
		return &strictyaml.Fault{Msg: "mode is 0600, 0644, 0700 or 0755"}
	}
	m.Mode = v
	return nil
}

// Shape is the shape of a placeholder. The zero Shape makes none.
type Shape struct {
	placeholder.Shape
	Text string // as it was written
}

// ParseScalar reads a shape such as "sk-ant-api03-{base64url:95}".
func (s *Shape) ParseScalar(text string) error {
	v, err := placeholder.ParseShape(text)
	if err != nil {
		return &strictyaml.Fault{Msg: "not the shape of a placeholder", Hint: `fixed text and random runs: "sk-ant-api03-{base64url:95}"`}
	}
	s.Shape, s.Text = v, text
	return nil
}

type voice struct{ Voice policy.Voice }

func (v *voice) ParseScalar(text string) error {
	p, err := policy.ParseVoice(text)
	if err != nil {
		return err
	}
	v.Voice = p
	return nil
}
