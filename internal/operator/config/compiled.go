package config

import (
	"net/netip"
	"net/url"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
	"postern/internal/operator/ruleset"
)

// Compiled is one profile, with all that a session needs of its policy file. It is shared and never changed.
type Compiled struct {
	Name   string
	Policy *policy.Policy
	Rules  []policy.Rule // in order: git, allow, presets, deny

	Credentials  map[gate.CredentialName]Credential // those that a rule of this profile uses
	Placeholders []preset.Placeholder               // what the sandbox is given in their place, one for each credential at most
	Env          map[string]preset.Template         // the sandbox's environment, presets' and the profile's own
	Files        []preset.File                      // what its home begins with
	Mounts       []Mount                            // nil: the working directory, writable
	Tools        []string                           // paths below home that presets want read-only, if they exist

	Limits    limit.Limits // zero fields mean the defaults
	Sandbox   Sandbox
	Upstreams map[gate.Authority]Upstream
	Proxy     *url.URL // http or https, without userinfo; nil: none
	Audit     Audit

	Voices []HostVoice          // how to refuse, by host; the first that matches; also for hosts of presets that are not used
	H1Only []policy.HostPattern // hosts whose clients are never offered HTTP/2

	Relaxations []Relaxation // what the profile gives up of the default protection, in the order of its lines
	Warnings    []string     // what is probably not meant
}

// Relaxation is what one line of the policy, or of a preset, gives up.
type Relaxation struct {
	Rule string // "postern.yaml:12", "preset debian:6"
	ruleset.Relaxation
}

// String is the relaxation in one line, with where it stands and what it means.
func (r Relaxation) String() string { return r.Rule + ": " + r.Relaxation.String() }

// Credential is where a credential's value is kept.
type Credential struct {
	Name   gate.CredentialName
	Kind   Kind
	Source Source
	Line   int // where the policy file declares it
}

// Source is a file or a command; exactly one is set.
type Source struct {
	File    string   // absolute
	JSON    []string // keys from the top of the JSON file to the value; nil: the file is the value
	Command []string // program (a name on PATH or an absolute path) and arguments
}

// Mount is a part of the host that the sandbox sees.
type Mount struct {
	Path   string // on the host, absolute
	Target string // in the sandbox, absolute
	Write  bool
}

// Sandbox is what the sandbox may use of the host. Zero means the sandbox's default.
type Sandbox struct {
	Memory    int64 // bytes
	Processes int
	Files     int   // open files of one process
	FileSize  int64 // bytes
}

// Upstream is a fixed address for a name.
type Upstream struct {
	Address netip.AddrPort
	CAFile  string // absolute path of a PEM file; "": the system's roots
}

// HostVoice is how refusals for some hosts are worded.
type HostVoice struct {
	Host  policy.HostPattern
	Voice policy.Voice
}

// Audit is where the audit log is kept. Zero means the log's default.
type Audit struct {
	Dir    string // absolute
	Rotate int64  // bytes
}

// RenderedFile is a file of the sandbox's home with its placeholders filled in.
type RenderedFile struct {
	preset.File
	Text string
}

// Render fills the session's placeholders, one for each of Placeholders, and its working directory into the environment and the files.
func (c *Compiled) Render(placeholders map[gate.CredentialName]string, workdir string) (env map[string]string, files []RenderedFile, err error) {
	env = make(map[string]string, len(c.Env))
	for name, t := range c.Env {
		if env[name], err = t.Expand(placeholders, workdir); err != nil {
			return nil, nil, err
		}
	}
	for _, f := range c.Files {
		text, err := f.Content.Expand(placeholders, workdir)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, RenderedFile{f, text})
	}
	return env, files, nil
}
