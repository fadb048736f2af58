// Package git reads what git clients send over smart HTTP. It reads and writes bytes; it decides nothing.
package git

import (
	"strings"

	"postern/internal/core/gate"
)

// Op is what a git request does. The zero Op is not git.
type Op uint8

const (
	NotGit        Op = iota
	DiscoverFetch    // GET  …/info/refs?service=git-upload-pack
	DiscoverPush     // GET  …/info/refs?service=git-receive-pack
	Fetch            // POST …/git-upload-pack
	Push             // POST …/git-receive-pack
)

func (o Op) String() string {
	switch o {
	case DiscoverFetch:
		return "discover-fetch"
	case DiscoverPush:
		return "discover-push"
	case Fetch:
		return "fetch"
	case Push:
		return "push"
	}
	return "none"
}

// Writes reports whether the operation belongs to a push.
func (o Op) Writes() bool { return o == Push || o == DiscoverPush }

// Discovers reports whether the operation asks for a ref advertisement.
func (o Op) Discovers() bool { return o == DiscoverFetch || o == DiscoverPush }

// Request is a classified git request. The zero Request is not git.
type Request struct {
	Op   Op
	Repo gate.Repo
}

// Classify recognises the four requests of smart HTTP (gitprotocol-http) by method, path and query. Anything else,
// also a dumb-protocol or malformed one, is not git.
func Classify(h gate.Host, m gate.Method, p gate.Path) Request {
	if p.EncodedSlash() {
		return Request{}
	}
	op, base := NotGit, ""
	query, hasQuery := p.Query()
	path := p.Decoded()
	if b, ok := strings.CutSuffix(path, "/info/refs"); ok && m == gate.GET {
		base = b
		switch query {
		case "service=git-upload-pack":
			op = DiscoverFetch
		case "service=git-receive-pack":
			op = DiscoverPush
		}
	} else if b, ok := strings.CutSuffix(path, "/git-upload-pack"); ok && m == gate.POST && !hasQuery {
		op, base = Fetch, b
	} else if b, ok := strings.CutSuffix(path, "/git-receive-pack"); ok && m == gate.POST && !hasQuery {
		op, base = Push, b
	}
	if op == NotGit {
		return Request{}
	}
	repo, err := gate.NewRepo(h, base)
	if err != nil {
		return Request{}
	}
	return Request{op, repo}
}
