package gate

import (
	"encoding/base32"
	"strings"
)

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// SessionID names one run of one sandbox. The zero SessionID is none.
type SessionID struct{ s string }

// NewSessionID spells ten random bytes.
func NewSessionID(random [10]byte) SessionID {
	return SessionID{"s" + idEncoding.EncodeToString(random[:])}
}

func (id SessionID) String() string { return id.s }

// IsZero reports whether id names no session.
func (id SessionID) IsZero() bool { return id.s == "" }

// EventID names one decision in the audit log; people type it after `postern explain`. The zero EventID is none.
type EventID struct{ s string }

// NewEventID spells ten random bytes.
func NewEventID(random [10]byte) EventID { return EventID{"e" + idEncoding.EncodeToString(random[:])} }

func (id EventID) String() string { return id.s }

// IsZero reports whether id names no event.
func (id EventID) IsZero() bool { return id.s == "" }

// ParseSessionID reads what NewSessionID spells.
func ParseSessionID(s string) (SessionID, error) {
	if !spelledID(s, 's') {
		return SessionID{}, fault("session id", ReasonConfig, -1, "not an s and sixteen of 0–9, a–z without i, l, o and u")
	}
	return SessionID{s}, nil
}

// ParseEventID reads what NewEventID spells.
func ParseEventID(s string) (EventID, error) {
	if !spelledID(s, 'e') {
		return EventID{}, fault("event id", ReasonConfig, -1, "not an e and sixteen of 0–9, a–z without i, l, o and u")
	}
	return EventID{s}, nil
}

func spelledID(s string, kind byte) bool {
	var b [10]byte
	if len(s) != 17 || s[0] != kind {
		return false
	}
	_, err := idEncoding.Decode(b[:], []byte(s[1:])) // ten bytes fill sixteen digits: every spelling names one value
	return err == nil && !strings.ContainsAny(s, "\r\n")
}

// CredentialName is the name a policy gives a credential. The zero CredentialName is none.
type CredentialName struct{ s string }

// ParseCredentialName accepts 1 to 64 of a–z, 0–9, '-', '_' and '.', starting with a letter.
func ParseCredentialName(s string) (CredentialName, error) {
	if s == "" || len(s) > 64 {
		return CredentialName{}, fault("credential name", ReasonConfig, -1, "must have 1 to 64 characters")
	}
	if s[0] < 'a' || s[0] > 'z' {
		return CredentialName{}, fault("credential name", ReasonConfig, 0, "must begin with a lower-case letter")
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return CredentialName{}, fault("credential name", ReasonConfig, i, "only a–z, 0–9, '-', '_' and '.'")
		}
	}
	return CredentialName{s}, nil
}

func (n CredentialName) String() string { return n.s }

// IsZero reports whether n names no credential.
func (n CredentialName) IsZero() bool { return n.s == "" }

// Repo is a git repository: a host and a path below it without slashes at its ends and without ".git". The zero Repo is none.
type Repo struct {
	host Host
	path string
}

// NewRepo makes a Repo of a host and a decoded path. The path needs at least one segment; every segment is of
// letters, digits, '-', '_', '.', '~' and '+', none is "." or "..", none begins with '-', and one ".git" at the end is dropped;
// a path that still ends in ".git", in any case, is refused, because forges differ on which repository it names.
// Paths are compared without case, as forges do, so the stored path is lower-case.
func NewRepo(h Host, path string) (Repo, error) {
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	if h.IsZero() || path == "" || len(path) > 1024 {
		return Repo{}, fault("repository", ReasonGitMalformed, -1, "needs a host and a path")
	}
	for seg := range strings.SplitSeq(path, "/") {
		if seg == "" || seg == "." || seg == ".." || seg[0] == '-' || strings.EqualFold(seg, ".git") {
			return Repo{}, fault("repository", ReasonGitMalformed, -1, "a path segment that no repository has")
		}
		for i := 0; i < len(seg); i++ {
			if c := seg[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~+", c) >= 0) {
				return Repo{}, fault("repository", ReasonGitMalformed, -1, "a byte that no repository path has")
			}
		}
	}
	path = strings.ToLower(path)
	if strings.HasSuffix(path, ".git") {
		return Repo{}, fault("repository", ReasonGitMalformed, -1, "a name that ends in .git")
	}
	return Repo{h, path}, nil
}

// ParseRepo reads "host/path", as policy files write it: github.com/acme/widgets.
func ParseRepo(s string) (Repo, error) {
	host, path, _ := strings.Cut(s, "/")
	h, err := ParseHost(host)
	if err != nil {
		return Repo{}, err
	}
	return NewRepo(h, path)
}

// Host is the forge.
func (r Repo) Host() Host { return r.host }

// Path is the canonical path below the host.
func (r Repo) Path() string { return r.path }

func (r Repo) String() string { return r.host.String() + "/" + r.path }

// IsZero reports whether r names nothing.
func (r Repo) IsZero() bool { return r.path == "" }
