package native

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// The plan travels to the child in a sealed memfd: eight bytes of length (big endian), that much JSON, then the blobs back to back.
// It holds no secret. Everything after that is one JSON object per packet on the control socket.
const (
	controlFD = 3
	planFD    = 4
	firstFD   = 5 // the first mount that A opened for B

	maxPlan   = 4 << 20
	maxBlobs  = 256 << 20
	maxPacket = 64 << 10
	maxMasks  = 512
)

type plan struct {
	Command  []string
	Env      []string
	Workdir  string
	Home     string
	UID, GID uint32
	Hostname string
	Mounts   []planMount
	Files    []planFile
	Blobs    []int
	Protect  []string
	Mask     []string
	Limits   Limits
	Console  console
	Setup    []byte
}

// planMount is a source that A resolved and checked: B mounts exactly the object with this device and inode, or nothing.
type planMount struct {
	Source string // free of symbolic links
	Target string
	Write  bool
	Dir    bool
	Dev    uint64
	Ino    uint64
	FD     int // descriptor of a detached mount that A made, 0 when B opens Source itself
}

type planFile struct {
	Path    string
	Mode    fs.FileMode
	Blob    int
	Overlay bool
}

// console is the terminal that one of the command's standard descriptors is, "" when none is.
type console struct {
	Path string
	Rdev uint64
}

// order is a packet from A to B.
type order struct {
	Masks  *[]string `json:",omitempty"` // sockets to mask; sent once, during the first stage
	Exec   bool      `json:",omitempty"`
	Signal int       `json:",omitempty"` // send this to the command
	Unless bool      `json:",omitempty"` // but not if it was just sent to all of the process group
}

// report is a packet from B to A.
type report struct {
	Failed  *failure    `json:",omitempty"`
	Ready   *ready      `json:",omitempty"` // sockets travel with it
	Started bool        `json:",omitempty"`
	NoExec  *ExecError  `json:",omitempty"`
	Stopped bool        `json:",omitempty"` // the command was stopped by a signal
	Exit    *ExitStatus `json:",omitempty"`
}

type failure struct{ Op, Path, Reason, Hint string }

type ready struct {
	Notes []string
	Names []string // of the sockets
}

func (f *failure) err() error {
	return &Error{Op: f.Op, Path: f.Path, Err: errors.New(f.Reason), Hint: f.Hint}
}

func failed(err error) *failure {
	if e := (*Error)(nil); errors.As(err, &e) {
		return &failure{Op: e.Op, Path: e.Path, Reason: e.Err.Error(), Hint: e.Hint}
	}
	return &failure{Op: "start", Reason: err.Error()}
}

// addFiles appends files to the plan and returns the contents that belong to it, each content once.
func (p *plan) addFiles(files []File, blobs [][]byte) [][]byte {
	for _, f := range files {
		n := -1
		for i, b := range blobs {
			if bytes.Equal(b, f.Content) {
				n = i
				break
			}
		}
		if n < 0 {
			n = len(blobs)
			blobs = append(blobs, f.Content)
			p.Blobs = append(p.Blobs, len(f.Content))
		}
		mode := f.Mode.Perm()
		if mode == 0 {
			mode = 0o644
		}
		p.Files = append(p.Files, planFile{Path: f.Path, Mode: mode, Blob: n, Overlay: f.Overlay})
	}
	return blobs
}

// seal writes the plan and its blobs to a memfd that can no longer be changed.
func (p *plan) seal(blobs [][]byte) (*os.File, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	if len(text) > maxPlan {
		return nil, fmt.Errorf("plan of %d bytes is larger than %d", len(text), maxPlan)
	}
	fd, err := unix.MemfdCreate("postern-plan", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "postern-plan")
	parts := append([][]byte{binary.BigEndian.AppendUint64(nil, uint64(len(text))), text}, blobs...)
	for _, b := range parts {
		if _, err := f.Write(b); err != nil {
			f.Close()
			return nil, fmt.Errorf("write plan: %w", err)
		}
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal plan: %w", err)
	}
	return f, nil
}

// readPlan maps the plan that A sealed. The blobs point into the mapping, which lives as long as the process.
func readPlan(fd int) (*plan, [][]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, fmt.Errorf("plan: %w", err)
	}
	if st.Size < 8 || st.Size > maxPlan+maxBlobs {
		return nil, nil, fmt.Errorf("plan of %d bytes", st.Size)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map plan: %w", err)
	}
	return parsePlan(b)
}

func parsePlan(b []byte) (*plan, [][]byte, error) {
	if len(b) < 8 {
		return nil, nil, errors.New("plan is cut short")
	}
	n := binary.BigEndian.Uint64(b)
	b = b[8:]
	if n > maxPlan || n > uint64(len(b)) {
		return nil, nil, errors.New("plan is cut short")
	}
	var p plan
	if err := json.Unmarshal(b[:n], &p); err != nil {
		return nil, nil, fmt.Errorf("decode plan: %w", err)
	}
	b = b[n:]
	var blobs [][]byte
	for _, size := range p.Blobs {
		if size < 0 || size > len(b) {
			return nil, nil, errors.New("plan is cut short")
		}
		blobs = append(blobs, b[:size:size])
		b = b[size:]
	}
	for _, f := range p.Files {
		if f.Blob < 0 || f.Blob >= len(blobs) {
			return nil, nil, errors.New("plan names a blob that it does not hold")
		}
	}
	return &p, blobs, nil
}

// sendReport is B's side of the control socket. It may be called from several goroutines: a packet is one system call.
func sendReport(r report, rights ...int) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if len(text) > maxPacket {
		return fmt.Errorf("report of %d bytes", len(text))
	}
	var oob []byte
	if len(rights) > 0 {
		oob = unix.UnixRights(rights...)
	}
	if err := unix.Sendmsg(controlFD, text, oob, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// receiveOrder waits for A. Any error, the end of the socket included, means that A is gone.
func receiveOrder() (order, error) {
	buf := make([]byte, maxPacket)
	for {
		n, err := unix.Read(controlFD, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return order{}, err
		}
		if n == 0 {
			return order{}, errors.New("the gateway is gone")
		}
		var o order
		if err := json.Unmarshal(buf[:n], &o); err != nil {
			return order{}, err
		}
		return o, nil
	}
}
