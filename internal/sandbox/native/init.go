package native

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// secondStage is argv[1] of B after it has dropped everything.
const secondStage = "second-stage"

// B leaves with syscall.Exit, which runs nothing on the way out.

// Init is the life of the sandbox's first process. main calls it before anything else when os.Args[0] is InitName; it never returns.
//
// setup runs with full capabilities in the new namespaces, while "/" still is the host's, read with the command's own uid. It gets
// Spec.Setup and returns the sockets that the gateway shall have. They are gone from this process before the command exists.
func Init(setup func(config []byte) ([]*os.File, error)) {
	runtime.LockOSThread()
	var err error
	switch strings.Join(os.Args[1:], " ") {
	case "":
		err = firstStage(setup)
	case secondStage:
		err = supervise()
	default:
		syscall.Exit(125)
	}
	if err != nil {
		sendReport(report{Failed: failed(err)}) // when nobody listens any more there is nobody to tell
	}
	syscall.Exit(125)
}

// firstStage builds the sandbox around this process and becomes the second stage. It only returns when something failed.
func firstStage(setup func([]byte) ([]*os.File, error)) error {
	if err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return &Error{Op: "close descriptors", Err: err}
	}
	if err := armed(); err != nil {
		return &Error{Op: "death signal", Err: err}
	}
	p, blobs, err := readPlan(planFD)
	if err != nil {
		return &Error{Op: "plan", Err: err}
	}
	if err := apart(); err != nil {
		return err
	}
	umask := unix.Umask(0)
	sockets, err := openSockets(setup, p.Setup)
	if err != nil {
		return &Error{Op: "setup", Err: err}
	}
	notes, err := build(p, blobs)
	if err != nil {
		return err
	}
	if err := resourceLimits(p.Limits); err != nil {
		return err
	}
	unix.Umask(umask | 0o002) // the caller's, but never world-writable
	if err := drop(p, &notes); err != nil {
		return err
	}
	if err := handOver(sockets, notes); err != nil {
		return err
	}
	return again()
}

func openSockets(setup func([]byte) ([]*os.File, error), config []byte) ([]*os.File, error) {
	if setup == nil {
		return nil, nil
	}
	return setup(config)
}

// build makes the file system and enters it.
func build(p *plan, blobs [][]byte) ([]string, error) {
	size := 0
	for _, b := range blobs {
		size += len(b)
	}
	t, err := begin(p, size)
	if err != nil {
		return nil, &Error{Op: "root", Err: err}
	}
	masks, err := awaitMasks()
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return t.collect(p.Mounts) },
		t.system,
		func() error { return t.devices(p.Console) },
		func() error { return t.private(p.Home) },
		t.proc,
		t.namespaceSwitches,
		func() error { return t.mount(p.Mounts) },
		func() error { return t.place(p.Files, blobs) },
		func() error { return t.protect(p.Protect, p.Mounts) },
		func() error { return t.maskSockets(masks) },
		func() error { return t.hide(p.Mask) },
		t.finish,
		t.forbidNamespaces,
	} {
		if err := step(); err != nil {
			if e := (*Error)(nil); !errors.As(err, &e) {
				err = &Error{Op: "root", Err: err}
			}
			return nil, err
		}
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return nil, &Error{Op: "hostname", Err: err}
	}
	return t.notes, nil
}

// awaitMasks waits for the search that A makes while B starts.
func awaitMasks() ([]string, error) {
	o, err := receiveOrder()
	if err != nil {
		return nil, &Error{Op: "start", Err: err}
	}
	if o.Masks == nil {
		return nil, &Error{Op: "start", Err: errors.New("the gateway spoke out of turn")}
	}
	return *o.Masks, nil
}

// handOver sends the sockets out and closes them here.
func handOver(sockets []*os.File, notes []string) error {
	r := &ready{Notes: notes, Names: []string{}}
	var fds []int
	for _, f := range sockets {
		r.Names = append(r.Names, f.Name())
		fds = append(fds, int(f.Fd()))
	}
	if err := sendReport(report{Ready: r}, fds...); err != nil {
		return &Error{Op: "hand over", Err: err}
	}
	for _, f := range sockets {
		f.Close()
	}
	return nil
}

// again replaces this process, with all its threads and memory, by the second stage. Only the control socket and the plan go along.
func again() error {
	for _, fd := range []int{controlFD, planFD} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return &Error{Op: "second stage", Err: err}
		}
	}
	err := syscall.Exec("/proc/self/exe", []string{InitName, secondStage}, []string{})
	return &Error{Op: "second stage", Err: fmt.Errorf("exec: %w", err)}
}
