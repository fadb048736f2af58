package strictyaml

import (
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// parseTokens runs the YAML parser. Its input is bounded by checkTokens; should it panic all the same, the file is refused
// rather than the process lost, because a policy is re-read while sessions run.
func parseTokens(tokens token.Tokens) (f *ast.File, err error) {
	defer func() {
		if recover() != nil {
			f, err = nil, errParserFault
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // duplicates are found, and placed, by tree
}

// tree copies the parser's nodes into ours and refuses every kind that is not a mapping, a sequence or a scalar.
type tree struct {
	r     *Report
	nodes int
}

func (t *tree) node(n ast.Node, depth int) *Node {
	at := posOf(n.GetToken())
	if t.nodes++; t.nodes > MaxNodes {
		if t.nodes == MaxNodes+1 {
			t.r.Add(at, "", "too many values (at most %d)", MaxNodes)
		}
		return &Node{Pos: at}
	}
	if depth > MaxDepth {
		t.r.Add(at, "", "nested deeper than %d levels", MaxDepth)
		return &Node{Pos: at}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return t.mapping(at, n.Values, depth)
	case *ast.MappingValueNode:
		return t.mapping(at, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out := &Node{Pos: at, Kind: Sequence, Items: make([]*Node, 0, len(n.Values))}
		for _, v := range n.Values {
			out.Items = append(out.Items, t.node(v, depth+1))
		}
		return out
	case *ast.NullNode:
		return &Node{Pos: at}
	case *ast.LiteralNode:
		if n.Value == nil {
			return &Node{Pos: at}
		}
		return t.scalar(at, n.Value.Value, true)
	case *ast.StringNode:
		k := n.Token.Type
		return t.scalar(at, n.Value, k == token.SingleQuoteType || k == token.DoubleQuoteType)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return t.scalar(at, n.GetToken().Value, false)
	}
	t.r.Add(at, "", "a kind of value that is not accepted")
	return &Node{Pos: at}
}

func (t *tree) scalar(at Pos, text string, quoted bool) *Node {
	for _, c := range text { // escapes can spell what checkBytes refused
		if c != '\n' && c != '\t' && Unshown(c) {
			t.r.Add(at, "", "a control or invisible character (U+%04X)", c)
			break
		}
	}
	if LooksSecret(text) {
		t.r.Add(at, "put the credential in a file of mode 0600 and name it under `credentials:` with `source: {file: PATH}`", "this looks like a credential; values never stand in this file")
	}
	return &Node{Pos: at, Kind: Scalar, Text: text, Quoted: quoted}
}

func (t *tree) mapping(at Pos, values []*ast.MappingValueNode, depth int) *Node {
	out := &Node{Pos: at, Kind: Mapping, Pairs: make([]Pair, 0, len(values))}
	seen := make(map[string]Pos, len(values))
	for i, v := range values {
		at := posOf(v.Key.GetToken())
		if i == 0 {
			out.Pos = at
		}
		key := t.node(v.Key, depth+1)
		if key.Kind != Scalar {
			if key.Kind != NoValue || t.r.Err() == nil {
				t.r.Add(at, "", "a key must be a word")
			}
			continue
		}
		if first, dup := seen[key.Text]; dup {
			t.r.Add(at, "remove one of the two", "duplicate key; the first is in line %d", first.Line)
			continue
		}
		seen[key.Text] = at
		value := &Node{Pos: at}
		if v.Value != nil {
			value = t.node(v.Value, depth+1)
		}
		out.Pairs = append(out.Pairs, Pair{key.Text, at, value})
	}
	return out
}
