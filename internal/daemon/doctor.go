package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"postern/internal/operator/config"
	"postern/internal/sandbox/inspect"
	"postern/internal/sandbox/native"
)

// DoctorOptions are what `postern doctor` was told.
type DoctorOptions struct {
	Config  string // "": found from the working directory
	Profile string // "" is "default"
}

// Report is what doctor found. docs/reference/doctor.md describes its JSON, which changes only together with Version.
type Report struct {
	Version      int     `json:"version"` // of this schema: 1
	Kernel       string  `json:"kernel"`
	UID          int     `json:"uid"`
	Policy       string  `json:"policy"` // path of the policy file, "" without one
	Profile      string  `json:"profile"`
	OK           bool    `json:"ok"` // every essential protection holds, or this machine has nothing to hold
	Held         int     `json:"held"`
	NotHeld      int     `json:"not_held"`
	NotAvailable int     `json:"not_available"`
	Checks       []Entry `json:"checks"`

	Relaxations []string `json:"relaxations"` // what the profile gives up, by line of the policy
	Warnings    []string `json:"warnings"`    // what the policy probably does not mean
	Notes       []string `json:"notes"`       // what the sandbox could not have on this machine
}

// Entry is one protection.
type Entry struct {
	ID        string         `json:"id"`
	Title     string         `json:"title"`
	Essential bool           `json:"essential"`
	Status    inspect.Status `json:"status"` // held, not_held or not_available
	Evidence  string         `json:"evidence"`
	Means     string         `json:"means,omitempty"` // only when it does not hold
	Remedy    string         `json:"remedy,omitempty"`
}

// Group is the part of the ID before the dot.
func (e Entry) Group() string {
	g, _, _ := strings.Cut(e.ID, ".")
	return g
}

// Made reports whether there was a sandbox to look at, for a check that needs one.
func (e Entry) Made() bool { return e.Evidence != notStarted }

const (
	reportVersion = 1
	notStarted    = "the sandbox did not start"
)

// inspectPath is where the sandbox finds the inspector.
const inspectPath = runDir + "/" + inspect.Name

// outcome is a result with the remedy that fits it.
type outcome struct {
	inspect.Result
	remedy string // "": the check's own
	fine   bool   // there is nothing to mend
}

func held(format string, a ...any) outcome {
	return outcome{Result: inspect.Result{Status: inspect.Held, Evidence: fmt.Sprintf(format, a...)}}
}

func notHeld(format string, a ...any) outcome {
	return outcome{Result: inspect.Result{Status: inspect.NotHeld, Evidence: fmt.Sprintf(format, a...)}}
}

func unavailable(format string, a ...any) outcome {
	return outcome{Result: inspect.Result{Status: inspect.Unavailable, Evidence: fmt.Sprintf(format, a...)}}
}

func (o outcome) mend(remedy string) outcome {
	o.remedy = remedy
	return o
}

func nothingToHold(format string, a ...any) outcome {
	o := unavailable(format, a...)
	o.fine = true
	return o
}

// doctor is one examination.
type doctor struct {
	run
	machine machine
	console *console
	scratch string // a directory of its own, gone afterwards
	sinks   *sinks
	started bool  // the sandbox came up
	failure error // of the first attempt to start it
	broke   error // why the inspector did not come to its end
	empty   *config.Compiled
	found   map[string]outcome
}

// Doctor makes a sandbox as Run does, looks at it from inside and outside, and takes it away again. An error means that nothing
// could be examined at all; a sandbox that does not start is a finding.
func Doctor(ctx context.Context, o DoctorOptions) (_ *Report, err error) {
	d := &doctor{machine: lookAtMachine(), found: map[string]outcome{}}
	if d.scratch, err = os.MkdirTemp("", "postern-doctor-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(d.scratch)
	if d.console, err = openConsole(); err != nil {
		return nil, err
	}
	defer d.console.close()
	d.run = run{
		RunOptions: RunOptions{
			Config: o.Config, Profile: o.Profile, UID: -1, Quiet: true, LogLevel: "error", Command: []string{inspectPath},
			Stdin: d.console.stdin, Stdout: d.console.stdout, Stderr: d.console.stderr,
		},
		id: newSession(), detail: "doctor",
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	if d.empty, err = config.Empty(); err != nil {
		return nil, err
	}
	if err := d.prepare(); err != nil {
		return nil, err
	}
	defer d.sinks.close()
	d.examine(ctx)
	return d.report(), nil
}

// prepare lays out what the host must have for the examination: the inspector's program, and places that must not be reached.
func (d *doctor) prepare() error {
	self, err := readFile("/proc/self/exe", maxBinary)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	d.extra = []native.File{{Path: inspectPath, Mode: 0o755, Content: self}}
	// What hides the directory must be the sandbox, not its mode.
	if err := os.Chmod(d.scratch, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.scratch, "marker"), []byte("only on the host\n"), 0o644); err != nil {
		return err
	}
	d.sinks, err = openSinks(d.scratch)
	return err
}

// maxBinary bounds the program that is handed in.
const maxBinary = 200 << 20

// examine goes through a whole life of a sandbox, and looks wherever there is something to see.
func (d *doctor) examine(ctx context.Context) {
	d.found["policy.file"] = d.examinePolicy(ctx)
	d.found["policy.credentials"] = examineCredentials(d.profile.Credentials, os.Geteuid())
	d.found["gateway.audit"] = d.examineAudit(ctx)
	if err := d.bringUp(ctx); err != nil {
		d.found["sandbox.start"] = diagnose(err, d.machine)
	} else {
		d.started = true
		d.found["sandbox.start"] = held("pid %d", d.process.PID())
		d.examineGateway()
		d.examineInside(ctx)
	}
	if err := d.close(); err != nil {
		d.found["gateway.audit"] = notHeld("%v", err)
	}
	d.console.close()
	if d.broke != nil {
		d.found["sandbox.start"] = notHeld("%v\n%s", d.broke, d.console.complaint.String())
	}
	d.found["gateway.audit_chain"] = examineChain(d.profile)
	for id, o := range d.machine.examine(d.started, d.failure, d.notes()) {
		d.found[id] = o
	}
}

// examinePolicy reads the policy as Run does. Without one that can be used, the sandbox is examined under the empty policy.
func (d *doctor) examinePolicy(ctx context.Context) outcome {
	err := d.readPolicy(ctx)
	if err != nil {
		evidence, remedy := split(err)
		d.profile, d.sources = d.empty, nil
		return notHeld("%s", evidence).mend(remedy)
	}
	if len(d.sources) == 0 {
		return unavailable("no policy file: everything is refused").mend("postern init writes a first one")
	}
	return held("%s, profile %s", d.sources[0], d.Profile)
}

// examineAudit opens the log as Run does. Where that fails the session is written to a directory that goes away.
func (d *doctor) examineAudit(ctx context.Context) outcome {
	err := d.openAudit(ctx)
	if err == nil {
		dir, _ := auditDir(d.profile) // openAudit had it
		return held("%s is written to", dir)
	}
	elsewhere := *d.profile
	elsewhere.Audit.Dir = filepath.Join(d.scratch, "audit")
	usual := d.profile
	d.profile = &elsewhere
	again := d.openAudit(ctx)
	d.profile = usual
	return notHeld("%v", errors.Join(err, again))
}

// bringUp makes the sandbox. A working directory that no sandbox may have is a finding of its own; the examination goes on elsewhere.
func (d *doctor) bringUp(ctx context.Context) error {
	d.found["sandbox.directory"] = held("%s", d.Workdir)
	err := d.sandbox(ctx)
	d.failure = err
	if err == nil || !aboutDirectory(err, d.Workdir) {
		return err
	}
	evidence, remedy := split(err)
	d.found["sandbox.directory"] = notHeld("%s", evidence).mend(remedy)
	d.Workdir = filepath.Join(d.scratch, "work")
	if err := os.Mkdir(d.Workdir, 0o755); err != nil {
		return err
	}
	if os.Geteuid() == 0 { // the command's own, so that no idmapped mount is needed; where it fails, that is tried
		const nobody = 65534
		_ = os.Chown(d.Workdir, nobody, nobody)
	}
	if err = d.sandbox(ctx); err != nil {
		delete(d.found, "sandbox.directory") // it was not the directory
	}
	return err
}

// sandbox takes the steps of Run up to the point where the command would start.
func (d *doctor) sandbox(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.start, d.bind, d.announce} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// aboutDirectory reports whether it is only the working directory that cannot be mounted.
func aboutDirectory(err error, dir string) bool {
	var dangerous *native.DangerousMountError
	if errors.As(err, &dangerous) {
		return dangerous.Source == dir
	}
	var e *native.Error
	return errors.As(err, &e) && (e.Op == "mount" || e.Op == "idmap") && e.Path == dir
}

func (d *doctor) notes() []string {
	var list []string
	if d.process != nil {
		list = append(list, d.process.Notes()...)
	}
	if d.set != nil {
		list = append(list, d.set.Notes...)
	}
	return list
}

// report puts what was found in order. A check that said nothing did not hold, unless there was no sandbox to look at.
func (d *doctor) report() *Report {
	r := &Report{
		Version: reportVersion, Kernel: d.machine.release, UID: d.machine.euid, Profile: d.Profile, OK: true, Checks: []Entry{},
		Relaxations: []string{}, Warnings: append([]string{}, d.profile.Warnings...), Notes: append([]string{}, d.notes()...),
	}
	for _, given := range d.profile.Relaxations {
		r.Relaxations = append(r.Relaxations, given.String())
	}
	if len(d.sources) > 0 {
		r.Policy = d.sources[0]
	}
	for _, c := range DoctorChecks() {
		o, ok := d.found[c.ID]
		switch {
		case ok:
		case !d.started:
			o = nothingToHold(notStarted)
		default:
			o = notHeld("the inspector did not say")
		}
		e := Entry{ID: c.ID, Title: c.Title, Essential: c.Essential, Status: o.Status, Evidence: o.Evidence}
		if o.Status != inspect.Held && !o.fine {
			e.Means, e.Remedy = c.Means, cmp.Or(o.remedy, c.Remedy)
		}
		r.add(e)
	}
	return r
}

func (r *Report) add(e Entry) {
	r.Checks = append(r.Checks, e)
	switch e.Status {
	case inspect.Held:
		r.Held++
	case inspect.Unavailable:
		r.NotAvailable++
	default:
		r.NotHeld++
		r.OK = r.OK && !e.Essential
	}
}

// DoctorChecks lists everything that doctor looks at, in the order of the report.
func DoctorChecks() []inspect.Check {
	order := []string{"policy", "machine", "sandbox", "namespaces", "network", "calls", "privileges", "process", "files", "trust", "limits", "gateway"}
	all := append(outsideChecks(), inspect.Checks()...)
	group := func(c inspect.Check) int { return slices.Index(order, Entry{ID: c.ID}.Group()) }
	slices.SortStableFunc(all, func(a, b inspect.Check) int { return group(a) - group(b) })
	return all
}

// split takes the first line of an error for what happened and the rest for how to mend it.
func split(err error) (evidence, remedy string) {
	evidence, remedy, _ = strings.Cut(err.Error(), "\n")
	return evidence, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(remedy), "hint:"))
}

// nonce is 128 random bits as text.
func nonce() string { return strings.ToLower(rand.Text()) }
