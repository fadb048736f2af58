package survey

import (
	"fmt"
	"slices"
	"strings"
)

// Answers is what the user agreed to.
type Answers struct {
	Credentials []string // names of candidates
	Push        bool     // to the origin
}

// needs is the credential that a preset cannot do without, "" when it needs none.
func needs(preset string) string {
	return map[string]string{"claude": "claude", "codex": "openai", "gemini": "gemini"}[preset]
}

// Policy writes a first postern.yaml. Every name in it was parsed, so the text needs no escaping.
func (f *Found) Policy(a Answers) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# What a sandbox may do here; everything else is refused. What a request would meet: postern policy explain URL")
	line("# After a change: postern policy trust")
	line("version: 1")
	line("")
	f.writeCredentials(line, a)
	line("profiles:")
	line("  default:")
	f.writeUse(line, a)
	if !f.Origin.IsZero() {
		line("    git:")
		entry := "repo: " + f.Origin.String()
		if slices.Contains(a.Credentials, "github") && f.Origin.Host().String() == "github.com" {
			entry += ", credential: github"
			if a.Push {
				entry += ", push: true"
			}
		}
		line("      - {%s}", entry)
	}
	if len(f.Registries) > 0 {
		line("    allow:")
		for _, r := range f.Registries {
			entry := "host: " + r.Host.String()
			if r.Port != 443 {
				entry += ", port: " + r.Port.String()
			}
			entry += ", methods: [GET, HEAD]"
			if r.Tool == "npm" {
				entry += ", encoded_slash: true"
			}
			line("      - {%s} # from %s; a private address needs an entry under upstreams:", entry, r.File)
		}
	}
	line("    mounts:")
	line("      - {path: ., write: true}")
	return b.String()
}

func (f *Found) writeCredentials(line func(string, ...any), a Answers) {
	var used []Candidate
	for _, c := range f.Credentials {
		if slices.Contains(a.Credentials, c.Name) {
			used = append(used, c)
		}
	}
	if len(used) == 0 {
		line("# credentials: # where values are kept, never the values")
		line("#   claude: {kind: api-key, source: {file: ~/.config/postern/claude}}")
		line("")
		return
	}
	line("credentials: # where values are kept, never the values")
	for _, c := range used {
		line("  %s: {kind: api-key, source: %s}", c.Name, c.Source)
	}
	line("")
}

func (f *Found) writeUse(line func(string, ...any), a Answers) {
	var use, missing []string
	for _, c := range f.Clients {
		if n := needs(c.Preset); n != "" && !slices.Contains(a.Credentials, n) {
			missing = append(missing, fmt.Sprintf("# %s needs a credential named %s under credentials:, and its name here", c.Preset, n))
			continue
		}
		use = append(use, c.Preset)
	}
	for _, m := range missing {
		line("    %s", m)
	}
	if len(use) > 0 {
		line("    use: [%s]", strings.Join(use, ", "))
	}
}
