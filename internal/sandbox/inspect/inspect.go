// Package inspect looks at a sandbox from inside and says of each protection whether it holds.
//
// The inspector is the gateway's own binary, run as the sandbox's command under the name Name. It reads a Plan from standard input
// and writes one Finding a line to standard output:
//
//	gateway ─ Plan (one JSON object) ─▶ inspector ─ Finding, Finding, … (JSON Lines) ─▶ gateway
//
// What it tries does no harm where it is not refused. A system call is made with arguments that the kernel itself would reject, for
// another reason than permission; a refusal is then the filter's word. Addresses are of networks that nobody has (RFC 5737, RFC 9637).
// Whether something arrived on the host is not the inspector's to say: Knock only knocks, and whoever owns the Targets listens.
//
// The lists of what must not be here are this package's own: a list that the sandbox was built from would share its gaps.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Name is the last element of argv[0] of an inspector. main calls Main when it sees it.
const Name = "postern-inspect"

// Bounds of the conversation.
const (
	MaxPlan     = 1 << 20          // bytes
	MaxFinding  = 16 << 10         // bytes of one line
	MaxTime     = 10 * time.Second // for all checks together
	maxEvidence = 1000             // runes
)

// Status says whether a protection holds. The zero Status is that it does not.
type Status uint8

const (
	NotHeld     Status = iota
	Held               // seen to hold
	Unavailable        // this machine has nothing to hold, or no means to
)

func (s Status) String() string {
	switch s {
	case Held:
		return "held"
	case Unavailable:
		return "not_available"
	}
	return "not_held"
}

// MarshalText writes held, not_held or not_available.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes and refuses everything else.
func (s *Status) UnmarshalText(text []byte) error {
	for _, known := range []Status{NotHeld, Held, Unavailable} {
		if string(text) == known.String() {
			*s = known
			return nil
		}
	}
	return errors.New("no such status")
}

// Result is what came of a check, with what was seen.
type Result struct {
	Status   Status
	Evidence string // one clause; never a value of an environment variable, nor a file's content
}

func held(format string, a ...any) Result    { return Result{Held, fmt.Sprintf(format, a...)} }
func notHeld(format string, a ...any) Result { return Result{NotHeld, fmt.Sprintf(format, a...)} }
func unavailable(format string, a ...any) Result {
	return Result{Unavailable, fmt.Sprintf(format, a...)}
}

// Finding is a Result on its way out of the sandbox.
type Finding struct {
	ID       string `json:"id"` // of a Check
	Status   Status `json:"status"`
	Evidence string `json:"evidence"`
}

// Check describes one protection for people. IDs are stable: they are added, never renamed.
type Check struct {
	ID        string // group.name
	Title     string // what is true when it holds
	Essential bool   // the sandbox is not to be used without it
	Means     string // what follows when it does not hold
	Remedy    string

	run func(context.Context, *Plan) Result // nil: not for the inspector to run
}

// Plan is what the inspector is told. It holds no secret.
type Plan struct {
	Namespaces   map[string]string `json:"namespaces"`   // the host's, as /proc/PID/ns names them: "net" → "net:[4026531840]"
	Witness      Witness           `json:"witness"`      // a process of the host
	Targets      []Target          `json:"targets"`      // servers of the host
	Nonce        string            `json:"nonce"`        // what to say to them
	Host         string            `json:"host"`         // a name that exists nowhere and that no policy allows
	Public4      string            `json:"public4"`      // an address beyond the host
	Public6      string            `json:"public6"`      // "" when IPv6 is not captured
	Metadata     []string          `json:"metadata"`     // address:port of cloud metadata services
	Synthetic    []string          `json:"synthetic"`    // the networks that names get their addresses from, as prefixes
	CA           string            `json:"ca"`           // the session's certificate, PEM
	Homes        []string          `json:"homes"`        // home directories of the host's user; the first is the sandbox's
	Declared     []string          `json:"declared"`     // what was put into the sandbox by name: files, mounts, tools
	Variables    []string          `json:"variables"`    // names that the environment may hold
	Placeholders []string          `json:"placeholders"` // those whose value stands in for a credential
	Sockets      []string          `json:"sockets"`      // Unix sockets of the host's, besides the well-known ones
	Absent       []string          `json:"absent"`       // paths of the host that must not be readable here
	ReadOnly     []string          `json:"read_only"`    // paths that may be readable here and must not be writable
}

// Witness is a process of the host: nothing in the sandbox may see it.
type Witness struct {
	Start string `json:"start"` // field 22 of /proc/PID/stat
	Comm  string `json:"comm"`
}

// Checks lists what the inspector can find out, in the order in which it is reported.
func Checks() []Check {
	var list []Check
	for _, group := range [][]Check{namespaceChecks(), networkChecks(), callChecks(), privilegeChecks(), processChecks(), fileChecks(), trustChecks()} {
		list = append(list, group...)
	}
	return list
}

// Run makes every check and hands over what it found, one after the other. Then it knocks.
func Run(ctx context.Context, p *Plan, emit func(Finding) error) error {
	for _, c := range Checks() {
		r := c.run(ctx, p)
		if runes := []rune(r.Evidence); len(runes) > maxEvidence {
			r.Evidence = string(runes[:maxEvidence]) + "…"
		}
		if err := emit(Finding{c.ID, r.Status, r.Evidence}); err != nil {
			return err
		}
	}
	made := Knock(ctx, p.Targets, p.Nonce)
	return emit(Finding{KnockID, Held, fmt.Sprintf("%d of %d attempts made", made, len(p.Targets))})
}

// Main is the inspector's life; args are os.Args. The result is its exit code: 0 when every finding was written, whatever it says.
func Main(args []string, in io.Reader, out io.Writer) int {
	if len(args) > 1 {
		child(args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), MaxTime)
	defer cancel()
	var p Plan
	d := json.NewDecoder(io.LimitReader(in, MaxPlan))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return 2
	}
	enc := json.NewEncoder(out)
	if err := Run(ctx, &p, func(f Finding) error { return enc.Encode(f) }); err != nil {
		return 1
	}
	return 0
}
