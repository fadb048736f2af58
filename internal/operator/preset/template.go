package preset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/operator/strictyaml"
)

// Template is text in which "{placeholder:NAME}" stands for the session's placeholder of a credential, "{placeholder_tail20:NAME}"
// for its last twenty characters, and "{workdir}" for the directory that the command starts in, escaped as inside a JSON or TOML
// string. Any other brace is itself. The zero Template is empty text.
type Template struct{ parts []part }

// part is literal text, or the working directory, or when name is set a placeholder, cut to its last tail characters when tail is not
// zero.
type part struct {
	text    string
	workdir bool
	name    gate.CredentialName
	tail    int
}

const workdir = "{workdir}"

// maxTemplate bounds a template in bytes.
const maxTemplate = 64 << 10

// ParseScalar reads a template.
func (t *Template) ParseScalar(text string) error {
	if len(text) > maxTemplate {
		return &strictyaml.Fault{Msg: "text longer than 64 KiB"}
	}
	t.parts = nil
	for {
		i := strings.Index(text, "{placeholder")
		if w := strings.Index(text, workdir); w >= 0 && (i < 0 || w < i) {
			t.literal(text[:w])
			t.parts = append(t.parts, part{workdir: true})
			text = text[w+len(workdir):]
			continue
		}
		if i < 0 {
			t.literal(text)
			return nil
		}
		t.literal(text[:i])
		expr, rest, ok := strings.Cut(text[i+1:], "}")
		kind, name, named := strings.Cut(expr, ":")
		tail, known := map[string]int{"placeholder": 0, "placeholder_tail20": 20}[kind]
		c, err := gate.ParseCredentialName(name)
		if !ok || !named || !known || err != nil {
			return &strictyaml.Fault{Msg: "not a placeholder", Hint: "write {placeholder:NAME} or {placeholder_tail20:NAME}, with a name under credentials:"}
		}
		t.parts = append(t.parts, part{name: c, tail: tail})
		text = rest
	}
}

func (t *Template) literal(text string) {
	if text != "" {
		t.parts = append(t.parts, part{text: text})
	}
}

// Credentials lists the credentials whose placeholders the text holds, each once.
func (t Template) Credentials() []gate.CredentialName {
	var out []gate.CredentialName
	for _, p := range t.parts {
		if !p.name.IsZero() && !slices.Contains(out, p.name) {
			out = append(out, p.name)
		}
	}
	return out
}

// Expand is the text with the working directory and every placeholder filled in. A placeholder that values does not have is an error.
func (t Template) Expand(values map[gate.CredentialName]string, dir string) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.workdir {
			b.WriteString(escaped(dir))
			continue
		}
		if p.name.IsZero() {
			b.WriteString(p.text)
			continue
		}
		v, ok := values[p.name]
		if !ok {
			return "", fmt.Errorf("no placeholder was made for credential %q", p.name)
		}
		if p.tail > 0 && len(v) > p.tail {
			v = v[len(v)-p.tail:]
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// escaped is s as it stands between the quotes of a JSON string, which a TOML basic string reads the same way.
func escaped(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return "" // a string always encodes
	}
	return string(b[1 : len(b)-1])
}

// String is the template as it was written.
func (t Template) String() string {
	var b strings.Builder
	for _, p := range t.parts {
		switch {
		case p.workdir:
			b.WriteString(workdir)
		case p.name.IsZero():
			b.WriteString(p.text)
		case p.tail > 0:
			fmt.Fprintf(&b, "{placeholder_tail%d:%s}", p.tail, p.name)
		default:
			fmt.Fprintf(&b, "{placeholder:%s}", p.name)
		}
	}
	return b.String()
}

func (t Template) rebind(old, name gate.CredentialName) Template {
	parts := slices.Clone(t.parts)
	for i := range parts {
		if parts[i].name == old {
			parts[i].name = name
		}
	}
	return Template{parts}
}
