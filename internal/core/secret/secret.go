// Package secret holds bytes that cannot be printed, compared or marshalled, and takes them out of streams.
//
// A Value keeps its bytes in a closure, because the usual type with a redacting String method leaks as soon as it sits in an
// unexported field: fmt, log/slog and text/template then walk the memory instead of calling the method. Nothing walks into a closure.
// A Redactor overwrites every spelling of some Values in what passes through it.
package secret

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
)

const (
	// MinLen is the fewest bytes a credential may have: shorter ones stand in ordinary text by chance, so they cannot be scrubbed.
	// Whoever loads one refuses it.
	MinLen = 8
	// MaxLen is the most bytes a credential may have. Whoever loads a longer one refuses it.
	MaxLen = 16 << 10
)

var (
	// ErrWiped says that the bytes were needed after Wipe, or never were there.
	ErrWiped = errors.New("secret: wiped")
	// ErrMarshal refuses every encoder.
	ErrMarshal = errors.New("secret: a secret is never marshalled")
)

// Value is a credential's bytes. Copies share them. The zero Value holds none. Safe for concurrent use.
type Value struct {
	_ [0]func()   // incomparable: == is not constant time
	f func() *box // no verb, handler, template or reflection reaches through it
	n string      // the credential's name: the only thing that prints
}

type box struct {
	mu    sync.RWMutex
	b     []byte
	wiped bool
}

// New makes a Value of b and takes ownership of b: the caller keeps no other reference to its bytes.
// They are zeroed by Wipe, or when the last copy of the Value is garbage.
func New(name string, b []byte) Value {
	x := &box{b: b}
	runtime.AddCleanup(x, func(b []byte) { clear(b) }, b)
	return Value{f: func() *box { return x }, n: name}
}

// Name is the credential's name, "" for the zero Value.
func (v Value) Name() string { return v.n }

// IsZero reports whether v was never given bytes. A wiped Value is not zero.
func (v Value) IsZero() bool { return v.f == nil }

// Len is the number of bytes, zero once wiped.
func (v Value) Len() int {
	n := 0
	// The only error is ErrWiped, and then n stays zero.
	_ = v.Use(func(b []byte) error { n = len(b); return nil })
	return n
}

// Use calls fn with the bytes. fn neither keeps nor changes them, and does not call Wipe on the same Value.
// The error is fn's, or ErrWiped.
func (v Value) Use(fn func([]byte) error) error {
	if v.f == nil {
		return ErrWiped
	}
	x := v.f()
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.wiped {
		return ErrWiped
	}
	return fn(x.b)
}

// Wipe zeroes the bytes for every copy of v, after running calls of Use have returned.
func (v Value) Wipe() {
	if v.f == nil {
		return
	}
	x := v.f()
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.b)
	x.b, x.wiped = nil, true
}

// Fingerprint is eight hex digits of HMAC-SHA256 under key: equal for equal secrets, and useless without the key. "" once wiped.
func (v Value) Fingerprint(key [32]byte) string {
	print := ""
	// The only error is ErrWiped, and then there is no fingerprint.
	_ = v.Use(func(b []byte) error {
		mac := hmac.New(sha256.New, key[:])
		mac.Write(b)
		print = hex.EncodeToString(mac.Sum(nil)[:4])
		return nil
	})
	return print
}

// String is "[secret NAME]".
func (v Value) String() string {
	if v.n == "" {
		return "[secret]"
	}
	return "[secret " + v.n + "]"
}

// GoString is String, for %#v.
func (v Value) GoString() string { return v.String() }

// Format prints String for every verb and flag.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, v.String()) }

// LogValue is String, for log/slog.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText refuses.
func (v Value) MarshalText() ([]byte, error) { return nil, ErrMarshal }

// MarshalJSON refuses.
func (v Value) MarshalJSON() ([]byte, error) { return nil, ErrMarshal }

// MarshalBinary refuses.
func (v Value) MarshalBinary() ([]byte, error) { return nil, ErrMarshal }

// GobEncode refuses.
func (v Value) GobEncode() ([]byte, error) { return nil, ErrMarshal }
