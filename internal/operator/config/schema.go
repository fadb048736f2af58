package config

import (
	"encoding/json"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"postern/internal/operator/preset"
	"postern/internal/operator/ruleset"
)

// Schema is the JSON Schema of postern.yaml, for editors. It is made from the structs that read the file; the file's meaning is
// narrower (names must exist, rules must agree), which `postern policy check` knows.
func Schema() ([]byte, error) {
	types := map[reflect.Type]*jsonschema.Schema{}
	for t, s := range scalarSchemas() {
		types[t] = s
	}
	long, err := jsonschema.ForType(reflect.TypeFor[useLong](), &jsonschema.ForOptions{TypeSchemas: types})
	if err != nil {
		return nil, err
	}
	types[reflect.TypeFor[useSource]()] = &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, long}}
	s, err := jsonschema.ForType(reflect.TypeFor[source](), &jsonschema.ForOptions{TypeSchemas: types})
	if err != nil {
		return nil, err
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "postern.yaml"
	refuseNull(s)
	out, err := json.MarshalIndent(s, "", "  ")
	return append(out, '\n'), err
}

// scalarSchemas say in JSON Schema what the scalars' parsers accept, as far as that language can.
func scalarSchemas() map[reflect.Type]*jsonschema.Schema {
	text := func(pattern string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: pattern} }
	one := func(words ...any) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Enum: words} }
	number := func(low, high float64) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "integer", Minimum: &low, Maximum: &high}
	}
	size := &jsonschema.Schema{Types: []string{"string", "integer"}, Pattern: `^[1-9][0-9]*([KMGT]iB|B)?$`}
	return map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[version]():                {Type: "integer", Enum: []any{1}},
		reflect.TypeFor[Kind]():                   one("api-key", "basic"),
		reflect.TypeFor[FilePath]():               text(`^[^$]+$`),
		reflect.TypeFor[Keys]():                   text(`^[^.]+(\.[^.]+)*$`),
		reflect.TypeFor[Repo]():                   text(`^[^/:@]+(/[^/:@]+)+$`),
		reflect.TypeFor[Count]():                  number(1, 1_000_000),
		reflect.TypeFor[Rate]():                   text(`^[1-9][0-9]*/(s|min|h)$`),
		reflect.TypeFor[Duration]():               text(`^([1-9][0-9]*d|([0-9]+(ms|s|m|h))+)$`),
		reflect.TypeFor[AddrPort]():               text(`^.+:[0-9]+$`),
		reflect.TypeFor[ProxyURL]():               text(`^https?://[^@/]+/?$`),
		reflect.TypeFor[preset.Shape]():           text(`\{`),
		reflect.TypeFor[preset.Template]():        {Type: "string"},
		reflect.TypeFor[ruleset.Host]():           text(`^(\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*)$`),
		reflect.TypeFor[ruleset.Port]():           number(1, 65535),
		reflect.TypeFor[ruleset.Scheme]():         one("https", "http"),
		reflect.TypeFor[ruleset.Method]():         one("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"),
		reflect.TypeFor[ruleset.Path]():           text(`^/[^?#%\\]*$`),
		reflect.TypeFor[ruleset.TLS]():            one("intercept", "tunnel"),
		reflect.TypeFor[ruleset.Keep]():           one("keep"),
		reflect.TypeFor[ruleset.CredentialName](): text(`^[a-z][a-z0-9_.-]{0,63}$`),
		reflect.TypeFor[ruleset.CIDR]():           text(`/[0-9]+$`),
		reflect.TypeFor[ruleset.Size]():           size,
	}
}

// refuseNull removes the null that inference adds to pointers and slices: an empty value is an error.
func refuseNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	var kept []string
	for _, t := range s.Types {
		if t != "null" {
			kept = append(kept, t)
		}
	}
	if len(s.Types) > 0 {
		if s.Types = kept; len(kept) == 1 {
			s.Type, s.Types = kept[0], nil
		}
	}
	for _, p := range s.Properties {
		refuseNull(p)
	}
	for _, o := range s.OneOf {
		refuseNull(o)
	}
	refuseNull(s.Items)
	refuseNull(s.AdditionalProperties)
}
