package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/hostile/attest"
	"postern/internal/hostile/capture"
	"postern/internal/operator/config"
	"postern/internal/sandbox/native"
	"postern/internal/sandbox/trust"
	"postern/internal/trusted/audit"
	"postern/internal/trusted/ca"
)

// RunOptions are what `postern run` was told.
type RunOptions struct {
	Config              string // "": found from the working directory
	Profile             string // "" is "default"
	Mounts              []string
	Env                 []string
	Workdir             string // "": the current one
	UID                 int    // negative: chosen
	AllowDangerousMount bool
	Quiet               bool
	LogLevel            string
	Command             []string

	Stdin, Stdout, Stderr *os.File
}

// run is one `postern run` under way, or the sandbox that `postern doctor` looks at.
type run struct {
	RunOptions
	id       gate.SessionID
	detail   string          // what the audit log says the session is for
	extra    []native.File   // files of the sandbox besides those of the profile
	given    native.Spec     // what the sandbox was made of
	traps    map[string]bool // what git on the host would run before the command did
	home     string
	user     string
	profile  *config.Compiled
	sources  []string // files that decide what the sandbox may do
	log      *slog.Logger
	audit    *audit.Log
	gateway  *Gateway
	process  *native.Process
	set      *capture.Set
	evidence *attest.Evidence
}

// duplicate gives a second owner a descriptor of its own.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Run runs a command in a sandbox and returns its exit code. An error means that postern failed; the command was then not
// started, or was killed.
func Run(ctx context.Context, o RunOptions) (code int, err error) {
	r := &run{RunOptions: o, id: newSession(), detail: "run " + filepath.Base(o.Command[0])}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { err = errors.Join(err, r.close()) }()
	for _, step := range []func(context.Context) error{r.settle, r.readPolicy, r.lookForCredentials, r.openAudit, r.start, r.bind, r.announce} {
		if err := step(ctx); err != nil {
			return 0, err
		}
	}
	return r.wait(ctx, cancel)
}

// settle finds out who and where we are.
func (r *run) settle(context.Context) error {
	var level slog.Level
	if r.LogLevel != "" {
		if err := level.UnmarshalText([]byte(r.LogLevel)); err != nil {
			return fmt.Errorf("--log-level %q: no such level\n  hint: one of debug, info, warn, error", r.LogLevel)
		}
	}
	if r.Quiet {
		level = max(level, slog.LevelError)
	}
	r.log = slog.New(slog.NewTextHandler(r.Stderr, &slog.HandlerOptions{Level: level})).With("session", r.id.String())
	if r.Profile == "" {
		r.Profile = "default"
	}
	dir := r.Workdir
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("working directory: %w\n  hint: cd into one that exists", err)
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("working directory %s: not a directory\n  hint: --workdir names one that exists", dir)
	}
	r.Workdir = dir
	if r.home, err = os.UserHomeDir(); err != nil || !filepath.IsAbs(r.home) {
		return errors.New("home directory: HOME is not set to an absolute path\n  hint: HOME=/home/me postern run …")
	}
	r.home = filepath.Clean(r.home)
	r.user = "sandbox"
	if u, err := user.Current(); err == nil && os.Geteuid() != 0 {
		r.user = u.Username
	}
	return nil
}

func (r *run) readPolicy(context.Context) error {
	f, err := config.Open(r.Config, r.Workdir)
	if errors.Is(err, config.ErrNotFound) {
		if r.Config != "" || r.Profile != "default" {
			return err
		}
		r.say("no policy: everything is refused\n  hint: postern init writes a first one")
		r.profile, err = config.Empty()
		return err
	}
	if err != nil {
		return err
	}
	for _, s := range f.Sources {
		r.sources = append(r.sources, s.Path)
	}
	r.profile, err = f.Profile(r.Profile)
	return err
}

func (r *run) openAudit(context.Context) error {
	dir, err := auditDir(r.profile)
	if err != nil {
		return err
	}
	r.audit, err = audit.Open(audit.Config{Dir: dir, Session: r.id, Rotate: r.profile.Audit.Rotate, Detail: r.detail})
	return err
}

func auditDir(c *config.Compiled) (string, error) {
	if c.Audit.Dir != "" {
		return c.Audit.Dir, nil
	}
	return audit.DefaultDir(os.Getenv, os.Geteuid())
}

// start makes the session's certificates and placeholders, and the sandbox up to the point where its command would run.
func (r *run) start(ctx context.Context) error {
	authority, err := ca.New(ca.Config{Session: r.id, Duration: r.profile.Limits.Duration, Refusals: r.profile.Limits.Leaves})
	if err != nil {
		return err
	}
	bundle, err := trust.New(authority.PEM())
	if err != nil {
		return err
	}
	stand, values, err := makePlaceholders(r.profile)
	if err != nil {
		return err
	}
	if r.given, err = r.spec(bundle, values); err != nil {
		return err
	}
	outside := make(chan error, 1) // the gateway is made beside the sandbox: neither needs the other, and both take their time
	go func() {
		var err error
		r.gateway, err = NewGateway(GatewayConfig{Session: r.id, Profile: r.profile, Authority: authority, Placeholders: stand, Writable: writable(r.given.Mounts), Recorder: r.audit, Log: r.log})
		outside <- err
	}()
	r.traps = gitTraps(r.given.Mounts)
	r.process, err = native.Start(ctx, r.given)
	if err := errors.Join(err, <-outside); err != nil {
		if r.gateway != nil {
			r.gateway.Close()
			r.gateway = nil
		}
		return err
	}
	return native.Harden() // after the child is started, whose uid map could not be written else, and before a credential is read
}

func (r *run) spec(bundle *trust.Bundle, placeholders map[gate.CredentialName]string) (native.Spec, error) {
	preset, rendered, err := r.profile.Render(placeholders, r.Workdir)
	if err != nil {
		return native.Spec{}, err
	}
	env, err := environment(r.home, r.user, r.Workdir, bundle, preset, r.Env)
	if err != nil {
		return native.Spec{}, err
	}
	mount, err := mounts(r.Workdir, r.profile, r.Mounts)
	if err != nil {
		return native.Spec{}, err
	}
	s := native.Spec{
		Command: r.Command, Env: env, Workdir: r.Workdir, Home: r.home, User: r.user,
		Mounts: mount, Tools: tools(r.home, r.profile), Files: append(files(r.home, r.Workdir, env, r.profile, bundle, rendered), r.extra...),
		Protect: append(rootFiles(r.profile), r.sources...), Dangerous: ownDirectories(r.profile), AllowDangerousMount: r.AllowDangerousMount,
		Limits: native.Limits{Memory: r.profile.Sandbox.Memory, Processes: int64(r.profile.Sandbox.Processes),
			OpenFiles: int64(r.profile.Sandbox.Files), FileSize: r.profile.Sandbox.FileSize},
		Setup: setupRequest(ports(r.profile)),
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	}
	if r.UID >= 0 {
		if r.UID == 0 {
			return s, errors.New("--uid 0: a sandbox never runs as root\n  hint: leave it away, and the working directory's owner is taken")
		}
		if os.Geteuid() != 0 && r.UID != os.Geteuid() {
			return s, errors.New("--uid: only root may run a sandbox as another user\n  hint: leave it away, and the sandbox runs as you")
		}
		s.Identity = native.Identity{UID: uint32(r.UID), GID: groupOf(r.UID)}
	}
	return s, nil
}

// ownDirectories are postern's configuration and state: no sandbox may be shown them.
func ownDirectories(c *config.Compiled) (dirs []string) {
	if d, err := config.Dir(); err == nil {
		dirs = append(dirs, d)
	}
	if d, err := config.StateDir(); err == nil {
		dirs = append(dirs, d)
	}
	if d, err := auditDir(c); err == nil {
		dirs = append(dirs, d)
	}
	for _, cr := range c.Credentials {
		if cr.Source.File != "" {
			dirs = append(dirs, cr.Source.File)
		}
	}
	return dirs
}

func groupOf(uid int) uint32 {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		if gid, err := strconv.ParseUint(u.Gid, 10, 32); err == nil && gid != 0 {
			return uint32(gid)
		}
	}
	return uint32(uid)
}

// bind takes the sandbox's sockets and ties the gateway to the kernel's evidence of who is behind them.
func (r *run) bind(ctx context.Context) error {
	var err error
	r.set, err = capture.Receive(capture.Config{Refused: r.gateway.refusedEarly}, r.process.Sockets())
	if err != nil {
		return err
	}
	pidfd, err := duplicate(r.process.PIDFD())
	if err != nil {
		return err
	}
	if r.evidence, err = attest.New(attest.Config{Cookie: r.set.Cookie, Process: pidfd}); err != nil {
		return err
	}
	r.gateway.Bind(r.evidence.Check)
	r.gateway.Serve(ctx, r.set)
	return nil
}

// wait runs the command to its end, and ends it when the session may not go on.
func (r *run) wait(ctx context.Context, cancel context.CancelCauseFunc) (int, error) {
	go func() {
		if err := r.set.Links.Wait(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	go r.warnOfAudit(ctx)
	signals, stop := context.WithCancel(ctx)
	defer stop()
	r.process.ForwardSignals(signals)
	if err := r.process.Exec(); err != nil {
		var exec *native.ExecError
		if errors.As(err, &exec) {
			fmt.Fprintf(r.Stderr, "postern: %s: %s\n%s", exec.Name, exec.Reason, unseen(r.home, exec))
			return exec.Code, nil
		}
		return 0, err
	}
	limit := time.AfterFunc(r.profile.Limits.Complete().Duration, func() { cancel(errors.New("the session has reached its limit: limits.duration")) })
	defer limit.Stop()
	if len(r.sources) > 0 {
		go r.gateway.watchPolicy(ctx, r.reload, r.stamp)
	}
	defer context.AfterFunc(ctx, func() { _ = r.process.Kill() })()
	status, err := r.process.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return 0, fmt.Errorf("the sandbox was stopped: %w", cause)
	}
	if err != nil {
		return 0, err
	}
	return status.Code, nil
}

// warnOfAudit says once that nothing goes any more. What the sandbox asks for meanwhile is its own affair: a line for each request
// would let it write over the person's terminal.
func (r *run) warnOfAudit(ctx context.Context) {
	select {
	case <-r.audit.Broken():
		fmt.Fprintln(r.Stderr, "postern: the audit log cannot be written, so every request is refused\n  hint: free disk space; it recovers by itself")
	case <-ctx.Done():
	}
}

// reload reads the policy as readPolicy did; its files must still be trusted.
func (r *run) reload() (*config.Compiled, error) {
	f, err := config.Open(r.Config, filepath.Dir(r.sources[0])) // not a nearer file, which the sandbox may have made
	if err != nil {
		return nil, err
	}
	return f.Profile(r.Profile)
}

// stamp changes when one of the policy's files does.
func (r *run) stamp() string {
	var b strings.Builder
	for _, p := range r.sources {
		if st, err := os.Stat(p); err == nil {
			fmt.Fprint(&b, st.ModTime().UnixNano(), st.Size(), ";")
		}
	}
	return b.String()
}

// close ends the session: first the sandbox, then the gateway, and the log last, so that nothing that happened is missing from it.
func (r *run) close() error {
	var errs []error
	if r.process != nil {
		_ = r.process.Kill()
		_, _ = r.process.Wait()
		errs = append(errs, r.tellTraps())
	}
	if r.set != nil {
		errs = append(errs, r.set.Close())
	}
	if r.gateway != nil {
		r.gateway.Close()
		if r.evidence != nil {
			_ = r.evidence.Close()
		}
		if n := r.gateway.Denials(); n > 0 && !r.Quiet {
			fmt.Fprintf(r.Stderr, "postern: %d refused: postern log --denied --session %s%s\n", n, r.id.String()[:6], r.whichLog())
		}
	}
	if r.audit != nil {
		errs = append(errs, r.audit.Close())
	}
	return errors.Join(errs...)
}

func newSession() gate.SessionID {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return gate.NewSessionID(b)
}
