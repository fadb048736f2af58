package native

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroup bounds the memory and the number of processes of one sandbox. A nil cgroup bounds nothing.
type cgroup struct{ dirs []string }

// A hierarchy is one place where control groups of ours could be made.
type hierarchy struct {
	parents []string // tried in turn
	limits  map[string]string
}

const cgroupPrefix = "postern-"

// newCgroup makes a group with limits, in version 2 where a parent is delegated to us, else in version 1. The note says what is
// missing.
func newCgroup(l Limits) (*cgroup, string) {
	memory := l.Memory
	if memory == 0 {
		memory = machineMemory() / 4 * 3
	}
	processes := l.Processes
	if processes == 0 {
		processes = defaultProcesses
	}
	own, err := ownGroups()
	if err != nil {
		return nil, noCgroup("memory and processes", err)
	}
	name := cgroupPrefix + owner()
	var g cgroup
	var missing []error
	for _, h := range hierarchies(cgroupRoot, own, memory, processes) {
		sweep(h.parents)
		dir, err := h.create(name)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		g.dirs = append(g.dirs, dir)
	}
	if len(g.dirs) == 0 {
		return nil, noCgroup("memory and processes", missing[0])
	}
	if len(missing) > 0 {
		return &g, noCgroup("memory or processes", missing[0])
	}
	return &g, ""
}

// noCgroup says in one line that there are no limits of the whole sandbox.
func noCgroup(what string, why error) string {
	var e *os.PathError
	if errors.As(why, &e) {
		why = e.Err // which directory is of no use to a person
	}
	return what + " have no limit of their own (cgroup: " + why.Error() + "): see postern doctor"
}

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies says where groups can be made below base. Version 1: below our own. Version 2, where a group with processes may not have
// children with limits: beside our own, as far as that is delegated to us, and for root at the top; no limit of our own group is
// escaped that way, for the new one gets no more.
func hierarchies(base string, own map[string]string, memory, processes int64) []hierarchy {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	if _, err := os.Stat(base + "/cgroup.controllers"); err == nil {
		at := filepath.Join(base, own[""])
		h := hierarchy{limits: map[string]string{
			"memory.max": num(atMost(memory, at+"/memory.max")), "memory.swap.max": "0", "memory.oom.group": "1",
			"pids.max": num(atMost(processes, at+"/pids.max")),
		}}
		if at != base {
			h.parents = append(h.parents, filepath.Dir(at))
		}
		h.parents = append(h.parents, at)
		if at != base && filepath.Dir(at) != base {
			h.parents = append(h.parents, base)
		}
		return []hierarchy{h}
	}
	return []hierarchy{
		{[]string{filepath.Join(base, "memory", own["memory"])}, map[string]string{"memory.limit_in_bytes": num(memory)}},
		{[]string{filepath.Join(base, "pids", own["pids"])}, map[string]string{"pids.max": num(processes)}},
	}
}

// atMost lowers a limit to the one in a file, if there is one.
func atMost(limit int64, file string) int64 {
	text, err := readSmall(file)
	if err != nil {
		return limit
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && n < limit {
		return n
	}
	return limit
}

func (h hierarchy) create(name string) (string, error) {
	last := errors.New("there is no place for one")
	for _, parent := range h.parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			last = err
			continue
		}
		if last = h.limit(dir); last == nil {
			return dir, nil
		}
		os.Remove(dir)
	}
	return "", last
}

func (h hierarchy) limit(dir string) error {
	for file, value := range h.limits {
		err := put(filepath.Join(dir, file), value)
		if err != nil && !(errors.Is(err, os.ErrNotExist) && (file == "memory.swap.max" || file == "memory.oom.group")) {
			return err // without swap, or on an older kernel, there is no such switch
		}
	}
	return nil
}

// put writes to a file of the kernel's, which cannot be created.
func put(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// adopt moves a process into the group. Its future children are born there.
func (g *cgroup) adopt(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := put(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return &Error{Op: "cgroup", Path: dir, Err: err}
		}
	}
	return nil
}

// remove deletes the group, which must be empty.
func (g *cgroup) remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		os.Remove(dir) // if it fails, the next start sweeps
	}
	g.dirs = nil
}

// owner names this process beyond doubt, in spite of reused pids: pid, start time, and a number for several sandboxes of one process.
func owner() string {
	var random [4]byte
	unix.Getrandom(random[:], 0) // a collision is an error of mkdir
	return fmt.Sprintf("%d-%s-%x", os.Getpid(), startTime(os.Getpid()), random)
}

// startTime is field 22 of /proc/PID/stat, "" when there is no such process or it is dead.
func startTime(pid int) string {
	b, err := readSmall(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(b, ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 || fields[0] == "Z" { // a zombie owns nothing
		return ""
	}
	return fields[19]
}

// sweep removes the groups of gateways that died without doing so.
func sweep(parents []string) {
	for _, parent := range parents {
		found, _ := filepath.Glob(filepath.Join(parent, cgroupPrefix+"*")) // the only error is a bad pattern
		for _, dir := range found {
			part := strings.Split(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), "-")
			if len(part) != 3 {
				continue
			}
			if pid, err := strconv.Atoi(part[0]); err == nil && startTime(pid) != part[1] {
				os.Remove(dir) // a group with processes is busy and stays
			}
		}
	}
}

// ownGroups maps controllers to our own group's path; "" is version 2's.
func ownGroups() (map[string]string, error) {
	text, err := readSmall("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(text) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 || strings.Contains(part[2], "..") {
			continue
		}
		for c := range strings.SplitSeq(part[1], ",") {
			own[c] = part[2]
		}
	}
	return own, nil
}

func machineMemory() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 4 << 30
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// readSmall reads at most 64 KiB of a kernel file.
func readSmall(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b strings.Builder
	_, err = io.Copy(&b, io.LimitReader(bufio.NewReader(f), 64<<10))
	return b.String(), err
}
