package scrub

import (
	"net/http"
	"strings"
)

// Request makes r one whose answer can be searched: no compression but what will be undone, no ranges (two halves of a secret in two
// answers would be found in neither), no WebSocket extensions. It changes r's header.
func Request(r *http.Request) {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	coding := "identity"
	if refusesIdentity(r.Header["Accept-Encoding"]) {
		coding = "gzip" // it will be undone all the same
	}
	r.Header["Accept-Encoding"] = []string{coding}
	for _, name := range []string{"Range", "If-Range", "A-Im", "Sec-Websocket-Extensions"} {
		delete(r.Header, name)
	}
	for _, name := range []string{"Grpc-Accept-Encoding", "Connect-Accept-Encoding"} {
		if r.Header.Get(name) != "" {
			r.Header[name] = []string{"identity"}
		}
	}
}

// refusesIdentity reads an Accept-Encoding (RFC 9110 §12.5.3) for "identity;q=0", or "*;q=0" without a word on identity.
func refusesIdentity(values []string) bool {
	identity, rest := "", ""
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			name, q, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(item, " ", "")), ";q=")
			switch name {
			case "identity":
				identity = "q" + q
			case "*":
				rest = "q" + q
			}
		}
	}
	none := func(q string) bool { return q != "q" && strings.Trim(q, "q0.") == "" && strings.HasPrefix(q, "q0") }
	return none(identity) || identity == "" && none(rest)
}
