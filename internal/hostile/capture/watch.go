package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNewLink is what LinkWatch.Wait reports when the sandbox's namespace has got another interface.
var ErrNewLink = errors.New("capture: the sandbox's network namespace has got a second interface")

// LinkWatch is the tripwire: capture is sound only while lo is the namespace's one interface.
type LinkWatch struct {
	f        *os.File
	baseline []uint32 // links that were there, and down, when the sandbox was made
}

func newLinkWatch(f *os.File, baseline []uint32) (*LinkWatch, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &LinkWatch{f: os.NewFile(uintptr(fd), "links"), baseline: baseline}, nil
}

// Wait returns ErrNewLink when a link other than loopback appears, or one that was there comes up; an error wrapping ErrNewLink too
// when the kernel lost notifications or something that is not the kernel speaks on the socket. When ctx ends it returns ctx's error.
// Links that appeared since Setup and before Wait are reported too. One Wait at a time.
func (w *LinkWatch) Wait(ctx context.Context) error {
	if err := w.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("capture: watch links: %w", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.f.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted // or it would interrupt the next Wait
		}
	}()
	raw, err := w.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("capture: watch links: %w", err)
	}
	buf := make([]byte, 16<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		var from unix.Sockaddr
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, from, rerr = unix.Recvfrom(int(fd), buf, unix.MSG_TRUNC)
			return !errors.Is(rerr, unix.EAGAIN) && !errors.Is(rerr, unix.EINTR)
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("capture: watch links: %w", err)
		case rerr != nil:
			return fmt.Errorf("%w, or may have: %w", ErrNewLink, rerr) // ENOBUFS: notifications were lost
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 || n > len(buf) {
			return fmt.Errorf("%w, or something pretends so", ErrNewLink)
		}
		if w.tripped(buf[:n]) {
			return ErrNewLink
		}
	}
}

// tripped reads the notifications of one datagram.
func (w *LinkWatch) tripped(b []byte) bool {
	return eachMessage(b, func(kind uint16, _ uint32, body []byte) error {
		if kind != unix.RTM_NEWLINK {
			return nil
		}
		l, ok := parseLink(body)
		if !ok || !l.loopback && (l.up || !slices.Contains(w.baseline, l.index)) {
			return ErrNewLink
		}
		return nil
	}) != nil
}

// Close ends the watch; a waiting Wait returns an error.
func (w *LinkWatch) Close() error { return w.f.Close() }
