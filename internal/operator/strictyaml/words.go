package strictyaml

import (
	"strconv"
	"strings"
)

// Word is ` "text"` when text is a plain word that can be repeated in an error, and "" when it could be part of a credential:
// only lower-case letters, '-', '_' and '.', at most two digits, at most 24 characters.
func Word(text string) string {
	if text == "" || len(text) > 24 {
		return ""
	}
	digits := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c == '-', c == '_', c == '.':
		case c >= '0' && c <= '9' && digits < 2:
			digits++
		default:
			return ""
		}
	}
	return " " + strconv.Quote(text)
}

// DidYouMean is `did you mean "x"?` for the name nearest to text, or "" when none is near.
func DidYouMean(text string, names []string) string {
	best, at := "", len(text)/3+2
	if len(text) > 64 {
		return ""
	}
	for _, n := range names {
		if d := distance(strings.ToLower(text), n); d < at {
			best, at = n, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + strconv.Quote(best) + "?"
}

// distance is the number of insertions, deletions, replacements and swaps of neighbours between two short words.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// secretPrefixes begin the credentials that services issue with a recognisable shape.
func secretPrefixes() []string {
	return []string{
		"sk-", "sk_live_", "sk_test_", "rk_live_", "pk_live_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-",
		"AKIA", "ASIA", "AIza", "ya29.", "1//0", "xoxb-", "xoxp-", "xoxa-", "xapp-", "hf_", "dop_v1_", "SG.", "eyJ",
	}
}

// secretRun is how many token characters must follow a prefix: the shortest issued credential (AWS key ids) has 16.
const secretRun = 16

// LooksSecret reports whether text holds what is shaped like an issued credential or a private key. It errs towards silence:
// a shape with a "{…}" in it, or a short example, is none.
func LooksSecret(text string) bool {
	if strings.Contains(text, "PRIVATE KEY-----") {
		return true
	}
	for _, p := range secretPrefixes() {
		for rest := text; ; {
			i := strings.Index(rest, p)
			if i < 0 {
				break
			}
			before := i == 0 || !tokenByte(rest[i-1])
			rest = rest[i+len(p):]
			if before && isRun(rest) {
				return true
			}
		}
	}
	return false
}

// isRun reports whether s begins with enough token characters, a digit among them: words joined by hyphens are none.
func isRun(s string) bool {
	n, digit := 0, false
	for n < len(s) && tokenByte(s[n]) {
		digit = digit || s[n] >= '0' && s[n] <= '9'
		n++
	}
	return n >= secretRun && digit
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}
