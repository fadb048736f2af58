package strictyaml

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Report collects what is wrong with one file.
type Report struct {
	File string
	errs Errors
	more int
}

// Add notes an error. The format's arguments must not be text of the file, but through Word.
func (r *Report) Add(at Pos, hint, format string, args ...any) {
	if len(r.errs) >= maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, &Error{File: r.File, Line: at.Line, Col: at.Col, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// Err is nil, or an Errors sorted by place.
func (r *Report) Err() error {
	if len(r.errs) == 0 {
		return nil
	}
	out := slices.Clone(r.errs)
	slices.SortStableFunc(out, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
	if r.more > 0 {
		out = append(out, &Error{File: r.File, Msg: fmt.Sprintf("and %d errors more", r.more)})
	}
	return out
}

// At is embedded in a struct that Decode fills and says where it stood. Tag it `json:"-"`.
type At struct {
	start Pos
	keys  map[string]Pos
}

// Pos is where the struct's mapping begins.
func (a At) Pos() Pos { return a.start }

// Key is where a key stands, or the struct's own place when it was not written. "key.name" is where name stands in a map under key.
func (a At) Key(name string) Pos {
	if p, ok := a.keys[name]; ok {
		return p
	}
	return a.start
}

// Has reports whether a key was written.
func (a At) Has(name string) bool { _, ok := a.keys[name]; return ok }

// Fault is an error of one scalar, with a hint. Neither text may repeat the scalar.
type Fault struct{ Msg, Hint string }

func (f *Fault) Error() string { return f.Msg }

// Scalarer is a type that one scalar fills. An error may be a *Fault and never repeats the text.
type Scalarer interface{ ParseScalar(text string) error }

// Noder is a type that reads a node itself, such as one that has a short and a long form.
type Noder interface{ ParseNode(n *Node, r *Report) }

// Decode parses src and fills into, a pointer to a struct. Field names come from json tags; a field without omitempty is required.
// Unknown keys and values of the wrong kind are errors. The error is an Errors with everything that was found.
func Decode(name string, src []byte, into any) error {
	r := &Report{File: name}
	if n := parse(r, src); n != nil {
		Fill(n, into, r)
	}
	return r.Err()
}

// Fill decodes one node into a pointer, adding errors to r.
func Fill(n *Node, into any, r *Report) { fill(n, reflect.ValueOf(into).Elem(), r) }

var atType = reflect.TypeFor[At]()

func fill(n *Node, v reflect.Value, r *Report) {
	if n.Kind == NoValue {
		r.Add(n.Pos, "write a value, or remove the key", "an empty value")
		return
	}
	if p, ok := v.Addr().Interface().(Noder); ok {
		p.ParseNode(n, r)
		return
	}
	if p, ok := v.Addr().Interface().(Scalarer); ok {
		if n.want(Scalar, r) {
			if err := p.ParseScalar(n.Text); err != nil {
				r.AddErr(n.Pos, err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(n, v.Elem(), r)
	case reflect.Struct:
		fillStruct(n, v, r)
	case reflect.Map:
		fillMap(n, v, r)
	case reflect.Slice:
		if !n.want(Sequence, r) {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items)))
		for i, item := range n.Items {
			fill(item, v.Index(i), r)
		}
	default:
		fillPlain(n, v, r)
	}
}

// AddErr notes an error of a scalar.
func (r *Report) AddErr(at Pos, err error) {
	if f, ok := err.(*Fault); ok { //nolint:errorlint // scalars return their fault as it is
		r.Add(at, f.Hint, "%s", f.Msg)
		return
	}
	r.Add(at, "", "%s", err.Error())
}

func (n *Node) want(k Kind, r *Report) bool {
	if n.Kind != k {
		r.Add(n.Pos, "", "%s is needed here, not %s", k, n.Kind)
		return false
	}
	return true
}

func fillPlain(n *Node, v reflect.Value, r *Report) {
	if !n.want(Scalar, r) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.Text)
	case reflect.Bool:
		if n.Quoted || n.Text != "true" && n.Text != "false" {
			r.Add(n.Pos, "", "true or false is needed here")
			return
		}
		v.SetBool(n.Text == "true")
	case reflect.Int:
		i, err := strconv.Atoi(n.Text)
		if err != nil || n.Quoted || strconv.Itoa(i) != n.Text {
			r.Add(n.Pos, "", "a whole number is needed here")
			return
		}
		v.SetInt(int64(i))
	default:
		panic("strictyaml: no way to fill a " + v.Type().String())
	}
}

func fillMap(n *Node, v reflect.Value, r *Report) {
	if !n.want(Mapping, r) {
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Pairs)))
	for _, p := range n.Pairs {
		e := reflect.New(v.Type().Elem()).Elem()
		fill(p.Value, e, r)
		v.SetMapIndex(reflect.ValueOf(p.Key), e)
	}
}

func fillStruct(n *Node, v reflect.Value, r *Report) {
	if n.Kind != Mapping {
		hint := ""
		if h, ok := v.Addr().Interface().(Hinter); ok {
			hint = h.HintKey("")
		}
		r.Add(n.Pos, hint, "%s is needed here, not %s", Mapping, n.Kind)
		return
	}
	at := At{start: n.Pos, keys: make(map[string]Pos, len(n.Pairs))}
	fields := fieldsOf(v.Type())
	for _, p := range n.Pairs {
		f, ok := fields[p.Key]
		if !ok {
			unknownKey(r, p, fields, v)
			continue
		}
		at.keys[p.Key] = p.At
		if v.Field(f.index).Kind() == reflect.Map {
			for _, q := range p.Value.Pairs {
				at.keys[p.Key+"."+q.Key] = q.At
			}
		}
		fill(p.Value, v.Field(f.index), r)
	}
	for _, name := range sortedKeys(fields) {
		if f := fields[name]; f.required && !at.Has(name) {
			r.Add(n.Pos, "", "%q is missing", name)
		}
	}
	if f := v.FieldByName("At"); f.IsValid() && f.Type() == atType {
		f.Set(reflect.ValueOf(at))
	}
}

type field struct {
	index    int
	required bool
}

func fieldsOf(t reflect.Type) map[string]field {
	out := make(map[string]field, t.NumField())
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		out[name] = field{i, !strings.Contains(opts, "omitempty")}
	}
	return out
}

func sortedKeys(m map[string]field) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Hinter is a struct that knows what people write in it by mistake.
type Hinter interface {
	// HintKey explains a key that the struct does not have, or with "" a value that is no mapping; "" when it has nothing to say.
	HintKey(key string) string
}

func unknownKey(r *Report, p Pair, fields map[string]field, v reflect.Value) {
	names := sortedKeys(fields)
	hint := DidYouMean(p.Key, names)
	if hint == "" {
		hint = "one of: " + strings.Join(names, ", ")
	}
	if h, ok := v.Addr().Interface().(Hinter); ok {
		if said := h.HintKey(p.Key); said != "" {
			hint = said
		}
	}
	r.Add(p.At, hint, "unknown key%s", Word(p.Key))
}

// Count is how many errors there are so far.
func (r *Report) Count() int { return len(r.errs) + r.more }

// AtNode is the place of a node, for a Noder that reads a short form.
func AtNode(n *Node) At { return At{start: n.Pos} }
