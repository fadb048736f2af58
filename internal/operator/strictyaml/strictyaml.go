// Package strictyaml reads the YAML that people write for postern, and nothing else that YAML can say.
//
// A file is one document of mappings, sequences and scalars. Anchors, aliases, merge keys, tags, directives, complex keys, a second
// document, duplicate and unknown keys, control and bidirectional characters, and files beyond the bounds below are errors.
// The file is judged as tokens before it is parsed, so the parser never sees what could make it recurse or expand.
//
// Errors carry file, line, column and a hint, and never quote the file: it may hold a credential that was pasted by mistake.
package strictyaml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// The bounds of one file. A policy of a thousand rules stays below a tenth of each.
const (
	MaxBytes = 1 << 20
	MaxNodes = 20_000
	MaxDepth = 16

	maxTokens = 5 * MaxNodes // a node and its punctuation
	maxErrors = 50
)

// Pos is a place in a file; lines and columns count from 1, columns in characters. The zero Pos is the file as a whole.
type Pos struct{ Line, Col int }

// Error is one thing wrong with a file.
type Error struct {
	File      string // as it is shown to people
	Line, Col int    // zero when the file as a whole is meant
	Msg       string
	Hint      string // how to mend it, "" when there is nothing to say
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col))
	}
	b.WriteString(": " + e.Msg)
	if e.Hint != "" {
		b.WriteString("\n  hint: " + e.Hint)
	}
	return b.String()
}

// Errors are all that is wrong with a file, in the order of their places. It unwraps to each *Error.
type Errors []*Error

func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the first *Error.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Kind is what a Node is. The zero Kind is an empty value.
type Kind uint8

const (
	NoValue Kind = iota
	Scalar
	Mapping
	Sequence
)

func (k Kind) String() string {
	switch k {
	case Scalar:
		return "a value"
	case Mapping:
		return "a mapping"
	case Sequence:
		return "a list"
	}
	return "nothing"
}

// Node is one value of a file.
type Node struct {
	Pos
	Kind   Kind
	Text   string // Scalar: as written, quotes and escapes resolved; no number or date is ever interpreted
	Quoted bool   // Scalar: was quoted or a block
	Pairs  []Pair // Mapping
	Items  []*Node
}

// Pair is one entry of a mapping.
type Pair struct {
	Key   string
	At    Pos // of the key
	Value *Node
}

// Get finds the value of a key; nil when n is no mapping or has no such key.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	for i := range n.Pairs {
		if n.Pairs[i].Key == key {
			return n.Pairs[i].Value
		}
	}
	return nil
}

// Parse reads one document. name is how errors call the file. The error is an Errors.
func Parse(name string, src []byte) (*Node, error) {
	r := &Report{File: name}
	n := parse(r, src)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return n, nil
}

func parse(r *Report, src []byte) *Node {
	if len(src) > MaxBytes {
		r.Add(Pos{}, "", "larger than 1 MiB")
		return nil
	}
	if !checkBytes(r, src) {
		return nil
	}
	tokens := lexer.Tokenize(string(src))
	if !checkTokens(r, tokens) {
		return nil
	}
	f, err := parseTokens(tokens)
	if err != nil {
		reportSyntax(r, err)
		return nil
	}
	t := tree{r: r}
	for _, d := range f.Docs {
		if d.Body != nil {
			return t.node(d.Body, 1)
		}
	}
	r.Add(Pos{}, "", "empty file")
	return nil
}

// checkBytes refuses what an editor does not show as it is: control bytes, and characters that reorder or hide text.
func checkBytes(r *Report, src []byte) bool {
	line, col := 1, 1
	for i := 0; i < len(src); {
		c, size := utf8.DecodeRune(src[i:])
		if c == utf8.RuneError && size <= 1 {
			r.Add(Pos{line, col}, "save the file as UTF-8", "not UTF-8")
			return false
		}
		if c != '\n' && c != '\t' && !(c == '\r' && i+1 < len(src) && src[i+1] == '\n') && Unshown(c) {
			r.Add(Pos{line, col}, "", "a control or invisible character (U+%04X)", c)
			return false
		}
		i += size
		col++
		if c == '\n' {
			line, col = line+1, 1
		}
	}
	return true
}

// Unshown reports whether a character has no shape of its own: controls, format characters (bidirectional, zero width),
// line and paragraph separators, surrogates and private use.
func Unshown(c rune) bool { return c != ' ' && !unicode.IsGraphic(c) || c == '\u2028' || c == '\u2029' }

// checkTokens refuses the parts of YAML that a policy has no use for, and bounds what the parser is given.
func checkTokens(r *Report, tokens token.Tokens) bool {
	if len(tokens) > maxTokens {
		r.Add(Pos{}, "", "too many values (at most %d)", MaxNodes)
		return false
	}
	var d depth
	docs, body, values := 0, false, 0
	for _, tk := range tokens {
		at := posOf(tk)
		msg, hint := "", ""
		switch tk.Type {
		case token.AnchorType:
			msg, hint = "anchors are not accepted", "write the value out, or quote it if it begins with \"&\""
		case token.AliasType:
			msg, hint = "aliases are not accepted", "quote a pattern that begins with \"*\": \"*.example.com\""
		case token.MergeKeyType:
			msg, hint = "merge keys are not accepted", "write the keys out"
		case token.TagType:
			msg, hint = "tags are not accepted", "quote a value that begins with \"!\""
		case token.DirectiveType:
			msg, hint = "directives are not accepted", "quote a value that begins with \"%\""
		case token.MappingKeyType:
			msg, hint = "complex keys are not accepted", "quote a value that begins with \"?\""
		case token.InvalidType:
			msg, hint = "not valid YAML", syntaxHint(tk.Error)
		case token.DocumentEndType:
			msg, hint = "a document end is not accepted", "remove the line"
		case token.DocumentHeaderType:
			if docs++; docs > 1 || body {
				msg, hint = "a second document", "keep one document a file"
			}
		case token.CommentType, token.MappingValueType, token.CollectEntryType, token.SequenceEndType, token.MappingEndType:
		default:
			body = true
			if values++; values > MaxNodes {
				msg = fmt.Sprintf("too many values (at most %d)", MaxNodes)
			}
		}
		if msg == "" && !d.step(tk) {
			msg = fmt.Sprintf("nested deeper than %d levels", MaxDepth)
		}
		if msg != "" {
			r.Add(at, hint, "%s", msg)
			return false
		}
	}
	return true
}

// depth follows nesting over tokens, a little wider than the tree's own depth, so that the recursive parser is never given more.
type depth struct {
	flow  int
	block []int // columns of the open block collections
	line  int
}

func (d *depth) step(tk *token.Token) bool {
	switch tk.Type {
	case token.SequenceStartType, token.MappingStartType:
		d.flow++
	case token.SequenceEndType, token.MappingEndType:
		d.flow--
	case token.CommentType, token.MappingValueType, token.CollectEntryType:
		return true
	}
	if d.flow == 0 && tk.Position.Column > 0 {
		col := tk.Position.Column
		if tk.Position.Line == d.line && tk.Type != token.SequenceEntryType {
			return true // a value beside its key opens nothing of its own, except after "- "
		}
		for len(d.block) > 0 && d.block[len(d.block)-1] >= col {
			d.block = d.block[:len(d.block)-1]
		}
		d.block = append(d.block, col)
		d.line = tk.Position.Line
	}
	return d.flow+len(d.block) <= 2*MaxDepth
}

func posOf(tk *token.Token) Pos {
	if tk == nil || tk.Position == nil {
		return Pos{}
	}
	return Pos{max(tk.Position.Line, 1), max(tk.Position.Column, 1)}
}

// syntaxHint turns the parser's complaint into ours; its own text may hold what the file holds.
func syntaxHint(msg string) string {
	switch {
	case strings.Contains(msg, "end character"):
		return "close the quote"
	case strings.Contains(msg, "reserved character"):
		return "quote a value that begins with \"@\" or \"`\""
	case strings.Contains(msg, "tab") || strings.Contains(msg, "'\t'"):
		return "indent with spaces, not with tabs"
	case strings.Contains(msg, "mapping value is not allowed"):
		return "quote a value that holds \": \""
	}
	return "check the indentation, brackets and quotes"
}

type syntaxError interface {
	error
	GetMessage() string
	GetToken() *token.Token
}

func reportSyntax(r *Report, err error) {
	var s syntaxError
	if !errors.As(err, &s) {
		r.Add(Pos{}, "check the indentation, brackets and quotes", "not valid YAML")
		return
	}
	if strings.Contains(s.GetMessage(), "already defined") {
		r.Add(posOf(s.GetToken()), "remove one of the two", "duplicate key")
		return
	}
	r.Add(posOf(s.GetToken()), syntaxHint(s.GetMessage()), "not valid YAML")
}

var errParserFault = errors.New("the YAML parser failed")
