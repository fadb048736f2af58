package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"postern/internal/testkit/canary"
)

// fds lists the descriptors that the process began with. Success is none beyond the first three.
func fds([]string) (map[string]any, error) {
	open := map[string]string{}
	var extra []string
	for fd := range 1024 {
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			continue
		}
		open[strconv.Itoa(fd)] = target
		if fd > 2 && flags&unix.FD_CLOEXEC == 0 { // the Go runtime's own are close-on-exec; what was inherited is not
			extra = append(extra, target)
		}
	}
	data := map[string]any{"open": open}
	if len(extra) > 0 {
		return data, fmt.Errorf("inherited: %s", strings.Join(extra, ", "))
	}
	return data, nil
}

// status reads /proc/self/status: capabilities, no_new_privs, seccomp, ids.
func status([]string) (map[string]any, error) {
	b, err := os.ReadFile("/proc/self/status")
	data := map[string]any{"uid": os.Getuid(), "gid": os.Getgid(), "pid": os.Getpid()}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		data[key] = strings.TrimSpace(value)
	}
	return data, err
}

func mounts([]string) (map[string]any, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return map[string]any{"mountinfo": strings.Split(strings.TrimSpace(string(b)), "\n")}, err
}

func links([]string) (map[string]any, error) {
	all, err := net.Interfaces()
	names := []string{}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return map[string]any{"links": names}, err
}

func environment([]string) (map[string]any, error) {
	data := map[string]any{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		data[name] = value
	}
	return data, nil
}

// read PATH reads the first 4 KiB of a file.
func read(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("read PATH")
	}
	data := map[string]any{"path": args[0]}
	f, err := os.OpenFile(args[0], os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return data, err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, err := f.Read(b)
	data["text"] = string(b[:n])
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data, err
}

// write PATH opens a file for writing, or makes one in a directory, and takes it away again.
func write(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("write PATH")
	}
	data := map[string]any{"path": args[0]}
	info, err := os.Stat(args[0])
	if err == nil && info.IsDir() {
		name := filepath.Join(args[0], ".probe")
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return data, err
		}
		return data, errors.Join(f.Close(), os.Remove(name))
	}
	f, err := os.OpenFile(args[0], os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return data, err
	}
	return data, f.Close()
}

// list DIR names what is in a directory.
func list(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("ls DIR")
	}
	entries, err := os.ReadDir(args[0])
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return map[string]any{"path": args[0], "names": names}, err
}

// sweep SET [DIR…] searches the environment, command line and memory of every process it can see, and every file it can read below
// the directories, for what SET (a file made by package canary) describes. Success is that the search was made; data has the finds.
func sweep(args []string) (map[string]any, error) {
	if len(args) == 0 {
		return usage("sweep SET [DIR…]")
	}
	b, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	set, err := canary.Unmarshal(b)
	if err != nil {
		return nil, err
	}
	s := &sweeper{set: set, skip: args[0], found: []string{}}
	roots := args[1:]
	if len(roots) == 0 {
		roots = []string{"/tmp", "/home", "/root", "/run", "/etc", "/var", "/dev/shm", "/opt", "/srv"}
		if wd, err := os.Getwd(); err == nil {
			roots = append(roots, wd)
		}
	}
	for _, r := range roots {
		s.tree(r)
	}
	s.processes()
	data := map[string]any{"found": s.found, "files": s.files, "processes": s.procs, "memory": s.memory, "bytes": s.bytes}
	if s.files == 0 || s.procs == 0 || s.memory == 0 {
		return data, errors.New("nothing was searched")
	}
	return data, nil
}

type sweeper struct {
	set                  *canary.Set
	skip                 string
	found                []string
	files, procs, memory int
	bytes                int64
}

func (s *sweeper) scan(where string, r io.Reader) {
	count := &counter{r: r}
	found, _ := s.set.Scan(count)
	s.bytes += count.n
	for _, f := range found {
		s.found = append(s.found, where+": "+f)
	}
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func (s *sweeper) tree(root string) {
	_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || name == s.skip {
			return nil
		}
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil
		}
		defer f.Close()
		s.files++
		s.scan(name, io.LimitReader(f, 64<<20))
		return nil
	})
}

func (s *sweeper) processes() {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		s.procs++
		for _, name := range []string{"environ", "cmdline", "comm", "mountinfo"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				s.scan(filepath.Join(dir, name), bytes.NewReader(b))
			}
		}
		s.mem(dir)
	}
}

// mem reads every readable mapping of a process, where the kernel allows it: its own, and those of its children's kind.
func (s *sweeper) mem(dir string) {
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return
	}
	defer maps.Close()
	mem, err := os.Open(filepath.Join(dir, "mem"))
	if err != nil {
		return
	}
	defer mem.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to int64
		var perms string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &perms); err != nil || perms[0] != 'r' || to-from > 1<<30 {
			continue
		}
		s.memory++
		s.scan(dir+"/mem "+lines.Text(), io.NewSectionReader(mem, from, to-from))
	}
}
