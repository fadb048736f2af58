package config

import (
	"strings"

	"postern/internal/operator/preset"
	"postern/internal/operator/ruleset"
	"postern/internal/operator/strictyaml"
)

// source is postern.yaml as it is written. The JSON Schema is made from these structs.
type source struct {
	strictyaml.At `json:"-"`

	Version     version                     `json:"version" jsonschema:"the version of this format: 1"`
	Credentials map[string]credentialSource `json:"credentials,omitempty" jsonschema:"names, and where the values are kept; never values"`
	Profiles    map[string]profileSource    `json:"profiles,omitempty" jsonschema:"what a sandbox may do; postern run uses the profile default unless told otherwise"`
	Upstreams   map[string]upstreamSource   `json:"upstreams,omitempty" jsonschema:"fixed addresses for names, by host or host:port"`
	Proxy       *proxySource                `json:"proxy,omitempty" jsonschema:"the proxy through which the host reaches the world"`
	Audit       *auditSource                `json:"audit,omitempty" jsonschema:"where the audit log is kept"`
}

type credentialSource struct {
	strictyaml.At `json:"-"`

	Kind        Kind         `json:"kind" jsonschema:"api-key for a token; basic for a password of basic authentication"`
	Source      valueSource  `json:"source" jsonschema:"where the value is kept"`
	Placeholder preset.Shape `json:"placeholder,omitempty" jsonschema:"the shape of what a sandbox is given in its place, for swap"`
}

const valueHint = "a credential's value never stands in this file: name where it is kept, with `source: {file: PATH}` or `source: {command: [PROGRAM, ARGUMENT]}`"

// HintKey knows how people try to write a value.
func (*credentialSource) HintKey(key string) string {
	switch strings.ToLower(key) {
	case "", "value", "secret", "token", "key", "password", "api_key", "apikey", "username", "user":
		return valueHint
	case "env", "environment", "file", "command", "json":
		return "it belongs under `source:`: source: {file: PATH}"
	}
	return ""
}

type valueSource struct {
	strictyaml.At `json:"-"`

	File    FilePath `json:"file,omitempty" jsonschema:"a file of mode 0600 that is yours; ~/ is your home, a relative path begins at this file's directory"`
	JSON    Keys     `json:"json,omitempty" jsonschema:"the place of the value in a JSON file: a.b.c"`
	Command []string `json:"command,omitempty" jsonschema:"a program and its arguments, run on the host without a shell; its output is the value"`
}

// HintKey knows the sources that other tools have.
func (*valueSource) HintKey(key string) string {
	switch strings.ToLower(key) {
	case "":
		return valueHint
	case "value", "secret", "token", "key", "password":
		return valueHint
	case "env", "environment", "variable":
		return "environment variables are no source: /proc and container tools show them; put the value in a file of mode 0600"
	}
	return ""
}

type profileSource struct {
	strictyaml.At `json:"-"`

	Use     []useSource                `json:"use,omitempty" jsonschema:"presets, by name or by path (./NAME.yaml)"`
	Git     []gitSource                `json:"git,omitempty" jsonschema:"repositories"`
	Allow   []ruleset.Allow            `json:"allow,omitempty" jsonschema:"what is allowed besides; the first rule that matches decides"`
	Deny    []ruleset.Deny             `json:"deny,omitempty" jsonschema:"what is refused whatever else allows it"`
	Limits  *limitsSource              `json:"limits,omitempty" jsonschema:"bounds of one session; what is absent has a default"`
	Mounts  []mountSource              `json:"mounts,omitempty" jsonschema:"what of the host the sandbox sees; absent: the working directory, writable"`
	Env     map[string]preset.Template `json:"env,omitempty" jsonschema:"environment variables of the sandbox; {placeholder:NAME} stands for a credential's placeholder"`
	Sandbox *sandboxSource             `json:"sandbox,omitempty" jsonschema:"what the sandbox may use of the host"`
}

// useSource is a preset: its name alone, or with the credential that it uses.
type useSource struct {
	strictyaml.At `json:"-"`

	Preset     string                  `json:"preset" jsonschema:"name or path"`
	Credential *ruleset.CredentialName `json:"credential,omitempty" jsonschema:"the credential to use instead of the one the preset names"`
}

// useLong is useSource without its short form.
type useLong useSource

// ParseNode reads `claude` or `{preset: claude, credential: mine}`.
func (u *useSource) ParseNode(n *strictyaml.Node, r *strictyaml.Report) {
	if n.Kind == strictyaml.Scalar {
		u.Preset = n.Text
		u.At = strictyaml.AtNode(n)
		return
	}
	strictyaml.Fill(n, (*useLong)(u), r)
}

type gitSource struct {
	strictyaml.At `json:"-"`

	Repo       Repo                    `json:"repo" jsonschema:"HOST/PATH, as in github.com/acme/widgets"`
	Credential *ruleset.CredentialName `json:"credential,omitempty" jsonschema:"absent: as anybody"`
	Push       bool                    `json:"push,omitempty" jsonschema:"allows pushes as well"`
	User       *string                 `json:"user,omitempty" jsonschema:"user name beside the credential; absent: what the forge wants"`
}

type limitsSource struct {
	strictyaml.At `json:"-"`

	Requests    Rate         `json:"requests,omitempty" jsonschema:"HTTP requests: 600/min"`
	Connections Count        `json:"connections,omitempty" jsonschema:"open connections at once, and requests under way at once"`
	Handshakes  Rate         `json:"handshakes,omitempty" jsonschema:"TLS handshakes: 50/s"`
	DNS         Rate         `json:"dns,omitempty" jsonschema:"DNS queries"`
	Leaves      Rate         `json:"leaves,omitempty" jsonschema:"certificates made to deliver refusals"`
	Header      ruleset.Size `json:"header,omitempty" jsonschema:"one request head"`
	Body        ruleset.Size `json:"body,omitempty" jsonschema:"one request body"`
	Upload      ruleset.Size `json:"upload,omitempty" jsonschema:"request bodies of the whole session"`
	Streams     Count        `json:"streams,omitempty" jsonschema:"HTTP/2 streams of one connection"`
	Idle        Duration     `json:"idle,omitempty" jsonschema:"a connection without a request"`
	Progress    Duration     `json:"progress,omitempty" jsonschema:"a body or stream without a byte"`
	Answer      Duration     `json:"answer,omitempty" jsonschema:"until the upstream answers"`
	Duration    Duration     `json:"duration,omitempty" jsonschema:"the whole session"`
}

type mountSource struct {
	strictyaml.At `json:"-"`

	Path   FilePath `json:"path" jsonschema:"on the host; ~/ is your home"`
	Write  bool     `json:"write,omitempty" jsonschema:"writable; read-only when absent"`
	Target FilePath `json:"target,omitempty" jsonschema:"in the sandbox; the same path when absent"`
}

type upstreamSource struct {
	strictyaml.At `json:"-"`

	Address AddrPort `json:"address" jsonschema:"IP address and port: 127.0.0.1:9443"`
	CA      FilePath `json:"ca,omitempty" jsonschema:"PEM file of the roots to verify it with; absent: the system's"`
}

type proxySource struct {
	strictyaml.At `json:"-"`

	URL ProxyURL `json:"url" jsonschema:"http://HOST:PORT or https://HOST:PORT, without credentials"`
}

type auditSource struct {
	strictyaml.At `json:"-"`

	Dir    FilePath     `json:"dir,omitempty" jsonschema:"directory of the log"`
	Rotate ruleset.Size `json:"rotate,omitempty" jsonschema:"size after which a new segment begins"`
}

type sandboxSource struct {
	strictyaml.At `json:"-"`

	Memory    ruleset.Size `json:"memory,omitempty" jsonschema:"memory of all its processes"`
	Processes Count        `json:"processes,omitempty" jsonschema:"processes and threads"`
	Files     Count        `json:"files,omitempty" jsonschema:"open files of one process"`
	FileSize  ruleset.Size `json:"file_size,omitempty" jsonschema:"the largest file it may write"`
}
