package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
	"postern/internal/operator/ruleset"
	"postern/internal/operator/strictyaml"
)

// The bounds of one file and profile beyond those of strictyaml.
const (
	maxProfiles    = 64
	maxCredentials = 256
	maxRules       = 10_000 // of one profile, presets included
	maxEndpoints   = 64     // different schemes and ports of one profile
)

// compiler turns a file's source into profiles. Errors collect in r.
type compiler struct {
	*loader
	src   *source
	dir   string // of the policy file
	label string // of the policy file in the names of rules
	r     *strictyaml.Report

	presetErrs  []error // of preset files, which have reports of their own
	credentials map[gate.CredentialName]Credential
	shapes      map[gate.CredentialName]preset.Shape
	upstreams   map[gate.Authority]Upstream
	announced   []Relaxation // of the file as a whole
}

func (c *compiler) compile() map[string]*Compiled {
	c.compileCredentials()
	c.compileUpstreams()
	if len(c.src.Profiles) > maxProfiles {
		c.r.Add(c.src.Key("profiles"), "", "more than %d profiles", maxProfiles)
		return nil
	}
	out := make(map[string]*Compiled, len(c.src.Profiles))
	for _, name := range slices.Sorted(maps.Keys(c.src.Profiles)) {
		if _, err := gate.ParseCredentialName(name); err != nil {
			c.r.Add(c.src.Key("profiles."+name), "", "a profile's name begins with a lower-case letter and has only a–z, 0–9, '-', '_' and '.'")
			continue
		}
		p := c.src.Profiles[name]
		out[name] = c.compileProfile(name, &p)
	}
	return out
}

func (c *compiler) compileCredentials() {
	c.credentials = make(map[gate.CredentialName]Credential, len(c.src.Credentials))
	c.shapes = map[gate.CredentialName]preset.Shape{}
	if len(c.src.Credentials) > maxCredentials {
		c.r.Add(c.src.Key("credentials"), "", "more than %d credentials", maxCredentials)
	}
	for key, s := range c.src.Credentials {
		at := c.src.Key("credentials." + key)
		name, err := gate.ParseCredentialName(key)
		if err != nil {
			c.r.Add(at, "", "%s", err)
			continue
		}
		if s.Has("placeholder") {
			c.shapes[name] = s.Placeholder
		}
		c.credentials[name] = Credential{Name: name, Kind: s.Kind, Line: at.Line, Source: c.compileSource(&s.Source)}
	}
}

func (c *compiler) compileSource(s *valueSource) Source {
	out := Source{File: s.File.in(c.dir, c.home), JSON: s.JSON, Command: s.Command}
	switch {
	case s.Has("file") == s.Has("command"):
		c.r.Add(s.Pos(), valueHint, "a source is one file or one command")
	case s.Has("json") && !s.Has("file"):
		c.r.Add(s.Key("json"), "remove it", "json belongs to file")
	case s.Has("command") && (len(s.Command) == 0 || s.Command[0] == "" || len(s.Command) > 64):
		c.r.Add(s.Key("command"), "", "a command is a program and at most 63 arguments")
	case s.Has("command") && strings.Contains(s.Command[0], "/") && s.Command[0][0] != '/':
		// A sandbox may write below the policy file's directory, and the command runs on the host.
		c.r.Add(s.Key("command"), "write a name on PATH or an absolute path", "a relative program could be replaced from inside a sandbox")
	}
	return out
}

func (c *compiler) compileUpstreams() {
	c.upstreams = make(map[gate.Authority]Upstream, len(c.src.Upstreams))
	for _, key := range slices.Sorted(maps.Keys(c.src.Upstreams)) {
		s, at := c.src.Upstreams[key], c.src.Key("upstreams."+key)
		a, err := gate.ParseAuthority(key, gate.HTTPS.DefaultPort())
		if err != nil || strings.ToLower(key) != key {
			c.r.Add(at, "for example: api.example.com, or api.example.com:8443", "a key under upstreams is a host name in lower case, or one with a port")
			continue
		}
		if _, twice := c.upstreams[a]; twice {
			c.r.Add(at, "remove one of the two", "this host and port stand twice")
		}
		u := Upstream{Address: s.Address.AddrPort, CAFile: s.CA.in(c.dir, c.home)}
		c.upstreams[a] = u
		r := ruleset.Relaxation{Key: "upstreams", Host: a.String(), Means: "dialled at " + u.Address.String()}
		if u.CAFile != "" {
			r.Means += ", verified with roots of its own"
		}
		c.announced = append(c.announced, Relaxation{Rule: c.label + ":" + strconv.Itoa(at.Line), Relaxation: r})
	}
}

func (c *compiler) compileProfile(name string, s *profileSource) *Compiled {
	out := &Compiled{Name: name, Credentials: map[gate.CredentialName]Credential{}, Env: map[string]preset.Template{}, Upstreams: c.upstreams,
		Limits: s.Limits.compile(), Sandbox: s.Sandbox.compile(), Mounts: c.compileMounts(s)}
	if c.src.Proxy != nil {
		out.Proxy = c.src.Proxy.URL.URL
	}
	if a := c.src.Audit; a != nil {
		out.Audit = Audit{Dir: a.Dir.in(c.dir, c.home), Rotate: int64(a.Rotate)}
	}
	p := &profile{compiler: c, src: s, out: out, shapes: maps.Clone(c.shapes), owner: map[string]string{}}
	p.compile()
	out.Relaxations = append(out.Relaxations, c.announced...)
	return out
}

func (c *compiler) compileMounts(s *profileSource) []Mount {
	if !s.Has("mounts") {
		return nil
	}
	// Relative paths begin where the policy lies when that is where one works, and else where one works: a policy in the
	// configuration directory must not mount that.
	base := c.dir
	if !below(c.work, c.dir) {
		base = c.work
	}
	out := []Mount{}
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		path := m.Path.in(base, c.home)
		target := path
		if m.Has("target") {
			if target = string(m.Target); target != "~" && !strings.HasPrefix(target, "~/") && !strings.HasPrefix(target, "/") {
				c.r.Add(m.Key("target"), "", "a target is an absolute path")
			}
			target = m.Target.in("/", c.home)
		}
		if seen[target] {
			c.r.Add(m.Pos(), "remove one of the two", "two mounts at the same place")
		}
		seen[target] = true
		out = append(out, Mount{Path: path, Target: target, Write: m.Write})
	}
	return out
}

func (s *limitsSource) compile() limit.Limits {
	if s == nil {
		return limit.Limits{}
	}
	return limit.Limits{
		Connections: int(s.Connections), Handshakes: s.Handshakes.Rate, Requests: s.Requests.Rate, DNS: s.DNS.Rate, Leaves: s.Leaves.Rate,
		Header: int(s.Header), Body: int64(s.Body), Upload: int64(s.Upload), Streams: int(s.Streams),
		Idle: time.Duration(s.Idle), Progress: time.Duration(s.Progress), Answer: time.Duration(s.Answer), Duration: time.Duration(s.Duration),
	}
}

func (s *sandboxSource) compile() Sandbox {
	if s == nil {
		return Sandbox{}
	}
	return Sandbox{Memory: int64(s.Memory), Processes: int(s.Processes), Files: int(s.Files), FileSize: int64(s.FileSize)}
}

// slotsSuit reports whether every slot may carry a credential of this kind.
func slotsSuit(k Kind, in policy.Injection) bool {
	return k != Basic || !slices.ContainsFunc(in.Slots, func(s policy.Slot) bool { return s.Kind != policy.BasicSlot })
}

// endpoints are the schemes and ports that the allow rules open.
func endpoints(rules []policy.Rule) []ruleset.Endpoint {
	var out []ruleset.Endpoint
	for _, r := range rules {
		if e := (ruleset.Endpoint{Scheme: r.Scheme, Port: r.Port}); !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}
