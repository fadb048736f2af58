package secret

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"text/template"
)

// canary is a random secret of printable characters, n bytes long.
func canary(t testing.TB, n int) string {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)[:n]
}

// absent fails if the canary stands in out as text, hex, base64, a list of byte values or a Go literal.
func absent(t *testing.T, where, canary, out string) {
	t.Helper()
	var decimals, hexes []string
	for _, c := range []byte(canary) {
		decimals = append(decimals, strconv.Itoa(int(c)))
		hexes = append(hexes, fmt.Sprintf("0x%x", c))
	}
	for _, form := range []string{
		canary, hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary)),
		strings.Join(decimals, " "), strings.Join(decimals, ","), strings.Join(hexes, ", "),
	} {
		if strings.Contains(strings.ToLower(out), strings.ToLower(form)) {
			t.Errorf("%s: the secret's bytes are in the output", where)
		}
	}
}

type exported struct{ V Value }
type unexported struct{ v Value }
type pointer struct{ V *Value }
type deep struct {
	m map[string]unexported
	s []Value
	a [1]any
	p *unexported
}
type embedded struct{ Value }

func nested(v Value) map[string]any {
	return map[string]any{
		"alone":      v,
		"pointer":    &v,
		"exported":   exported{v},
		"unexported": unexported{v},
		"to struct":  &unexported{v},
		"in pointer": pointer{&v},
		"embedded":   embedded{v},
		"map":        map[string]Value{"k": v},
		"slice":      []Value{v, v},
		"any":        []any{v, &v},
		"deep":       deep{m: map[string]unexported{"k": {v}}, s: []Value{v}, a: [1]any{v}, p: &unexported{v}},
		"error":      fmt.Errorf("outer: %w", fmt.Errorf("inner %v %s", v, v)),
		"channel":    func() any { c := make(chan Value, 1); c <- v; return c }(),
	}
}

func TestValueIsNeverFormatted(t *testing.T) {
	secret := canary(t, 24)
	v := New("github", []byte(secret))
	for name, x := range nested(v) {
		for verb := ' '; verb <= '~'; verb++ {
			for _, flags := range []string{"", "+", "#", "-", " ", "0", "20", ".40"} {
				format := "%" + flags + string(verb)
				absent(t, name+" "+format, secret, fmt.Sprintf(format, x))
			}
		}
		absent(t, name+" Sprint", secret, fmt.Sprint(x))
		wrapping := "%" + "w" // vet knows that x is no error
		absent(t, name+" wrapped", secret, fmt.Errorf(wrapping, x).Error())
	}
	if got := fmt.Sprintf("%v %s %d %x %#v", v, v, v, v, v); got != strings.TrimSpace(strings.Repeat("[secret github] ", 5)) {
		t.Errorf("a value prints as %q", got)
	}
}

func TestValueIsNeverLogged(t *testing.T) {
	secret := canary(t, 24)
	v := New("github", []byte(secret))
	for name, x := range nested(v) {
		var out bytes.Buffer
		for _, h := range []slog.Handler{
			slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil),
			slog.NewTextHandler(&out, nil).WithAttrs([]slog.Attr{slog.Any("with", x)}).WithGroup("g"),
			slog.NewJSONHandler(&out, nil).WithAttrs([]slog.Attr{slog.Any("with", x)}).WithGroup("g"),
		} {
			slog.New(h).Error("message", "v", x, slog.Group("group", "v", x))
		}
		if out.Len() == 0 {
			t.Fatal("nothing was logged")
		}
		absent(t, name, secret, out.String())
	}
}

func TestValueIsNeverRendered(t *testing.T) {
	secret := canary(t, 24)
	v := New("github", []byte(secret))
	const page = `{{.}} {{printf "%v %s %x %q %p" . . . . .}} {{with .}}{{.}}{{end}}`
	text := template.Must(template.New("").Parse(page))
	html := htmltemplate.Must(htmltemplate.New("").Parse(page + `<script>var x = {{.}}</script><a href="{{.}}">`))
	for name, x := range nested(v) {
		var out bytes.Buffer
		// A template may refuse a value: what matters is what was written before.
		errText := text.Execute(&out, x)
		errHTML := html.Execute(&out, x)
		absent(t, name, secret, out.String()+fmt.Sprint(errText, errHTML))
	}
}

func TestValueIsNeverMarshalled(t *testing.T) {
	secret := canary(t, 24)
	v := New("github", []byte(secret))
	for name, x := range nested(v) {
		js, errJSON := json.Marshal(x)
		indented, errIndent := json.MarshalIndent(x, "", " ")
		xm, errXML := xml.Marshal(x)
		var g bytes.Buffer
		errGob := gob.NewEncoder(&g).Encode(x)
		absent(t, name, secret, string(js)+string(indented)+string(xm)+g.String()+fmt.Sprint(errJSON, errIndent, errXML, errGob))
	}
	for name, marshal := range map[string]func() ([]byte, error){
		"text": v.MarshalText, "json": v.MarshalJSON, "binary": v.MarshalBinary, "gob": v.GobEncode,
		"json.Marshal":       func() ([]byte, error) { return json.Marshal(v) },
		"json.Marshal field": func() ([]byte, error) { return json.Marshal(exported{v}) },
		"json.Marshal key":   func() ([]byte, error) { return json.Marshal(map[string]any{"k": &v}) },
		"xml.Marshal":        func() ([]byte, error) { return xml.Marshal(exported{v}) },
		"gob.Encode":         func() ([]byte, error) { return nil, gob.NewEncoder(io.Discard).Encode(exported{v}) },
	} {
		if b, err := marshal(); err == nil || len(b) > 0 {
			t.Errorf("%s: was not refused", name)
		}
	}
}

// walk prints everything that reflection reaches, as dump libraries do.
func walk(out *strings.Builder, v reflect.Value, depth int) {
	if depth > 12 || !v.IsValid() {
		return
	}
	fmt.Fprintln(out, v.Kind(), v.String())
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		walk(out, v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			walk(out, v.Field(i), depth+1)
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			fmt.Fprintf(out, "%s\n", v.Bytes())
		}
		for i := range v.Len() {
			walk(out, v.Index(i), depth+1)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			walk(out, v.MapIndex(k), depth+1)
		}
	case reflect.Uint8:
		fmt.Fprintf(out, "%d %x\n", v.Uint(), v.Uint())
	}
}

func TestReflectionDoesNotReachTheBytes(t *testing.T) {
	secret := canary(t, 24)
	v := New("github", []byte(secret))
	for name, x := range nested(v) {
		var out strings.Builder
		walk(&out, reflect.ValueOf(x), 0)
		absent(t, name, secret, strings.ReplaceAll(out.String(), "\n", " "))
	}
	// The walk itself must see bytes where they can be seen, or it proves nothing.
	var out strings.Builder
	walk(&out, reflect.ValueOf(struct{ b []byte }{[]byte(secret)}), 0)
	if !strings.Contains(out.String(), secret) {
		t.Error("the walk does not find bytes in an unexported field")
	}
}

func TestValueIsIncomparable(t *testing.T) {
	if reflect.TypeFor[Value]().Comparable() {
		t.Error("== on secrets compiles, and it is not constant time")
	}
}

func TestUseFailsAfterWipe(t *testing.T) {
	b := []byte(canary(t, 16))
	v := New("github", b)
	again := v
	if v.Len() != 16 || v.IsZero() || v.Name() != "github" {
		t.Errorf("a new value has length %d, name %q", v.Len(), v.Name())
	}
	boom := errors.New("boom")
	if err := v.Use(func(got []byte) error {
		if !bytes.Equal(got, b) {
			t.Error("Use hands out other bytes")
		}
		return boom
	}); err != boom {
		t.Errorf("Use returns %v, not the function's error", err)
	}
	v.Wipe()
	v.Wipe()
	if !bytes.Equal(b, make([]byte, 16)) {
		t.Error("the bytes are still in memory")
	}
	for _, x := range []Value{v, again} {
		if err := x.Use(func([]byte) error { t.Error("called after Wipe"); return nil }); !errors.Is(err, ErrWiped) {
			t.Errorf("Use after Wipe: %v", err)
		}
		if x.Len() != 0 || x.IsZero() || x.Fingerprint([32]byte{}) != "" {
			t.Error("a wiped value still has a length or a fingerprint, or is zero")
		}
	}
}

func TestZeroValueHoldsNothing(t *testing.T) {
	var v Value
	v.Wipe()
	if !v.IsZero() || v.Len() != 0 || v.Name() != "" || v.String() != "[secret]" || v.Fingerprint([32]byte{}) != "" {
		t.Error("the zero value is not empty")
	}
	if err := v.Use(func([]byte) error { return nil }); !errors.Is(err, ErrWiped) {
		t.Errorf("Use of the zero value: %v", err)
	}
}

func TestDroppedValueIsZeroed(t *testing.T) {
	b := []byte(canary(t, 4096)) // large enough not to share its memory with others
	func() {
		v := New("github", b)
		if v.Len() != len(b) {
			t.Fatal("wrong length")
		}
	}()
	// A cleanup that is queued after the value's runs after it.
	for range 100 {
		done := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, done)
		runtime.GC()
		<-done
		if zeroed(b) {
			return
		}
	}
	t.Error("the bytes outlive the value")
}

// zeroed looks at memory that a cleanup may be clearing at this moment, which is what is waited for.
//
//go:norace
func zeroed(b []byte) bool {
	for i := range b {
		if b[i] != 0 {
			return false
		}
	}
	return true
}

func TestFingerprintDependsOnKeyAndSecret(t *testing.T) {
	secret := canary(t, 20)
	a, same, other := New("a", []byte(secret)), New("b", []byte(secret)), New("a", []byte(canary(t, 20)))
	key := [32]byte{1}
	print := a.Fingerprint(key)
	if len(print) != 8 || strings.Trim(print, "0123456789abcdef") != "" {
		t.Errorf("a fingerprint is eight hex digits, not %q", print)
	}
	if print != same.Fingerprint(key) {
		t.Error("equal secrets have different fingerprints")
	}
	if print == other.Fingerprint(key) || print == a.Fingerprint([32]byte{2}) {
		t.Error("a different secret or key has the same fingerprint")
	}
}

func TestWipeWaitsForUse(t *testing.T) {
	v := New("github", []byte(canary(t, 16)))
	inside, wiped := make(chan struct{}), make(chan struct{})
	go func() {
		<-inside
		v.Wipe()
		close(wiped)
	}()
	err := v.Use(func(b []byte) error {
		close(inside)
		for range 1000 {
			runtime.Gosched()
			if bytes.Equal(b, make([]byte, 16)) {
				return errors.New("wiped while in use")
			}
		}
		return nil
	})
	<-wiped
	if err != nil {
		t.Error(err)
	}
}
