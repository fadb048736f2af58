package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start makes the namespaces, lets Init's setup function run in them, builds the file system and drops every privilege, but does not
// start the command: Exec does, once the caller serves the sockets. ctx bounds Start alone. Everything of the Spec that could not be
// had is an error, or stands in Process.Notes.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	root := os.Geteuid() == 0
	id, err := spec.identify(os.Geteuid(), os.Getegid(), os.Getenv("SUDO_UID"), os.Getenv("SUDO_GID"))
	if err != nil {
		return nil, err
	}
	stdio, err := spec.stdio()
	if err != nil {
		return nil, err
	}
	defer stdio.close()
	have, err := spec.gather(id, root)
	if err != nil {
		return nil, err
	}
	defer have.close()
	group, note := newCgroup(spec.Limits)
	if note != "" {
		have.note("%s", note)
	}
	p := &Process{notes: have.notes, group: group, done: make(chan struct{}), terminal: stdio.terminal()}
	if err := p.begin(ctx, &spec, id, root, have, stdio); err != nil {
		p.abandon()
		for _, f := range p.sockets {
			f.Close()
		}
		return nil, err
	}
	return p, nil
}

// begin launches B and talks it through the first stage.
func (p *Process) begin(ctx context.Context, spec *Spec, id Identity, root bool, have *gathered, stdio *stdio) error {
	pl, blobs := spec.plan(id, have, stdio)
	sealed, err := pl.seal(blobs)
	if err != nil {
		return &Error{Op: "plan", Err: err}
	}
	defer sealed.Close()
	search := make(chan searched, 1)
	go func() {
		f, err := socketsBelow(have.mounts, have.tools)
		search <- searched{f, err}
	}()
	if err := p.launch(id, root, append([]*os.File{sealed}, have.trees...), stdio); err != nil {
		<-search
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.Kill() })
	defer stop()
	err = p.group.adopt(p.child.Pid)
	s := <-search
	if s.err != nil {
		return s.err
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	p.notes = append(p.notes, s.notes...)
	masks := append([]string{}, s.sockets...) // never null on the wire
	sent := p.send(order{Masks: &masks})
	if err = p.awaitReady(); err == nil { // if B is gone already, it has said why, and that is the better error
		err = sent
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("sandbox: start: %w", context.Cause(ctx))
		}
		return err
	}
	p.heard = make(chan struct{})
	go p.listen()
	return nil
}

type searched struct {
	found
	err error
}

// plan says to B what A has found out.
func (s *Spec) plan(id Identity, have *gathered, io *stdio) (*plan, [][]byte) {
	pl := &plan{
		Command: s.Command, Env: s.Env, Workdir: s.Workdir, Home: s.Home, UID: id.UID, GID: id.GID, Hostname: s.Hostname,
		Mounts: have.mounts, Protect: have.protect, Mask: s.Mask, Limits: s.Limits, Console: io.console, Setup: s.Setup,
	}
	if pl.Workdir == "" {
		pl.Workdir = s.Home
	}
	if pl.Hostname == "" {
		pl.Hostname = "sandbox"
	}
	blobs := pl.addFiles(baseFiles(s, id), nil)
	return pl, pl.addFiles(s.Files, blobs)
}

const namespaces = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWCGROUP

// launch forks B on a thread that lives as long as B does: PDEATHSIG is about the thread that forked, not about its process.
func (p *Process) launch(id Identity, root bool, extra []*os.File, io *stdio) error {
	ours, theirs, err := controlPair()
	if err != nil {
		return &Error{Op: "control socket", Err: err}
	}
	defer theirs.Close()
	p.control = ours
	sys := &syscall.SysProcAttr{
		Cloneflags:  namespaces,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: int(id.UID), HostID: int(id.UID), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: int(id.GID), HostID: int(id.GID), Size: 1}},
		AmbientCaps: setupCapabilities(),
		Pdeathsig:   syscall.SIGKILL,
		PidFD:       new(int),
	}
	if root {
		sys.GidMappingsEnableSetgroups = true
		sys.Credential = &syscall.Credential{Uid: id.UID, Gid: id.GID}
	}
	attr := &os.ProcAttr{Env: []string{}, Files: append([]*os.File{io.files[0], io.files[1], io.files[2], theirs}, extra...), Sys: sys}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		child, err := os.StartProcess("/proc/self/exe", []string{InitName}, attr)
		p.child = child
		started <- err
		if err == nil {
			p.state, p.waitErr = child.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		close(p.done)
		var where *os.PathError
		if errors.As(err, &where) { // fork/exec /proc/self/exe: of no use to a person
			err = where.Err
		}
		return &Error{Op: "namespaces", Err: err, Hint: namespaceHint(err)}
	}
	p.pidfd = os.NewFile(uintptr(*sys.PidFD), "pidfd")
	return nil
}

func namespaceHint(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "no more user namespaces are allowed here: see /proc/sys/user/max_user_namespaces, and run `postern doctor`"
	case errors.Is(err, syscall.EPERM):
		return "this machine refuses user namespaces to you: run `postern doctor`, which says what refuses them and how to permit postern alone"
	case errors.Is(err, syscall.EACCES):
		return "the command's uid must be able to execute the postern binary: chmod a+x it"
	}
	return ""
}

func controlPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		theirs.Close()
		return nil, nil, errors.New("not a Unix socket")
	}
	return conn, theirs, nil
}

// awaitReady reads the one packet that ends the first stage, and the sockets that come with it.
func (p *Process) awaitReady() error {
	r, rights, err := p.receive()
	if err != nil {
		return &Error{Op: "start", Err: fmt.Errorf("the sandbox ended before it was ready: %w", err)}
	}
	for i, fd := range rights {
		name := "socket"
		if r.Ready != nil && i < len(r.Ready.Names) {
			name = r.Ready.Names[i]
		}
		p.sockets = append(p.sockets, os.NewFile(uintptr(fd), name))
	}
	switch {
	case r.Failed != nil:
		return r.Failed.err()
	case r.Ready == nil:
		return &Error{Op: "start", Err: errors.New("the sandbox spoke out of turn")}
	case len(rights) != len(r.Ready.Names):
		return &Error{Op: "start", Err: errors.New("sockets were lost on the way out of the sandbox")}
	}
	p.notes = append(p.notes, r.Ready.Notes...)
	return nil
}

func (p *Process) receive() (report, []int, error) {
	buf := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*253))
	n, oobn, flags, _, err := p.control.ReadMsgUnix(buf, oob)
	if err != nil {
		return report{}, nil, err
	}
	var rights []int
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return report{}, nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return report{}, nil, err
		}
		rights = append(rights, fds...)
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return report{}, rights, errors.New("packet is cut short")
	}
	var r report
	err = json.Unmarshal(buf[:n], &r)
	return r, rights, err
}

func (p *Process) send(o order) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if len(text) > maxPacket {
		return &Error{Op: "mask sockets", Err: errors.New("more Unix sockets below the mounts than can be masked"), Hint: "mount a smaller directory"}
	}
	if _, err := p.control.Write(text); err != nil {
		return &Error{Op: "start", Err: fmt.Errorf("the sandbox is gone: %w", err)}
	}
	return nil
}
