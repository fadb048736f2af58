// Package record is the schema of the audit log: what one line says, and how it is spelled. It does no IO.
//
// One JSON object a line. Every decision is one record of kind "decision"; a decision that let something happen is followed by one
// record of kind "outcome" with the same event id. Sequence, time and chain hashes are added by the log that stores the record.
package record

import (
	"time"

	"postern/internal/core/gate"
)

// Version is the version of this schema. Fields are added within a version; a field that changes meaning changes the version.
const Version = 1

// Kind says what a record tells of. The zero Kind is refused by the log.
type Kind string

const (
	SessionStart Kind = "session.start"
	SessionEnd   Kind = "session.end"
	Decision     Kind = "decision" // something was asked for and answered
	Outcome      Kind = "outcome"  // what became of an allowed request
	Notice       Kind = "notice"   // a relaxation, a reload, a protection that is not held
)

// Record is one line of the audit log. Text fields may hold what a sandbox sent; the encoder escapes it.
// A Record never holds a credential, a query string or a body.
type Record struct {
	Kind    Kind
	Event   gate.EventID
	Session gate.SessionID

	Verdict string // "allow" or "deny"; "" for kinds that decide nothing
	Reason  gate.Reason
	Rule    string // which rule decided

	Action     string // "connect", "request", "tunnel", "dns"
	Scheme     string
	Host       string // canonical, or what was asked for when it has no canonical form (escaped, at most 256 bytes)
	Port       uint16
	Method     string
	Path       string // without query, at most 1,024 bytes
	Git        string // git operation
	Repo       string
	Credential string // its name
	Receipt    string // fingerprint of the credential that was used
	Detail     string // one clause for a person

	Status   int           // HTTP status the client saw
	BytesIn  int64         // body bytes towards upstream
	BytesOut int64         // body bytes towards the sandbox
	Duration time.Duration // from the first byte of the request to the last of the answer
	Count    int64         // for an aggregate: how many events this record stands for
}

// Receipt says which credential went on a request. The zero Receipt: none.
type Receipt struct {
	Credential  gate.CredentialName
	Fingerprint string // eight hex digits of a keyed hash, stable within a session, useless outside it
}
