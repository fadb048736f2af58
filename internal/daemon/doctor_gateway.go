package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/operator/config"
	"postern/internal/operator/journal"
)

// examineGateway looks at this process, which is the gateway, and at what the kernel says of the sandbox.
func (d *doctor) examineGateway() {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	d.found["gateway.dumpable"] = examineDumpable(dumpable, err)
	var core unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_CORE, &core)
	d.found["gateway.core"] = examineCore(core, err)
	d.found["gateway.identity"] = examineIdentity(d.evidence.Check(), d.process.PID(), d.set.Cookie)
	text, err := readFile(fmt.Sprintf("/proc/%d/cgroup", d.process.PID()), maxKernelFile)
	d.found["limits.cgroup"] = examineCgroup(string(text), err, "/sys/fs/cgroup")
}

func examineDumpable(dumpable int, err error) outcome {
	if err != nil || dumpable != 0 {
		return notHeld("PR_GET_DUMPABLE is %d (%v)", dumpable, err)
	}
	return held("PR_GET_DUMPABLE is 0")
}

func examineIdentity(err error, pid int, cookie uint64) outcome {
	if err != nil || cookie == 0 {
		return notHeld("network namespace cookie %d: %v", cookie, err)
	}
	return held("pidfd of process %d, network namespace cookie %d", pid, cookie)
}

func examineCore(l unix.Rlimit, err error) outcome {
	if err != nil || l.Cur != 0 || l.Max != 0 {
		return notHeld("RLIMIT_CORE is %d, at most %d (%v)", l.Cur, l.Max, err)
	}
	return held("RLIMIT_CORE is 0")
}

// examineCgroup finds the sandbox's own group in /proc/PID/cgroup and reads its limits.
func examineCgroup(groups string, err error, base string) outcome {
	if err != nil {
		return notHeld("%v", err)
	}
	if !strings.Contains(groups, "/"+groupPrefix) {
		return unavailable("the sandbox has no cgroup of its own: none could be made")
	}
	var have, missing []string
	for _, kind := range []struct{ what, controller, file1, file2 string }{
		{"memory", "memory", "memory.limit_in_bytes", "memory.max"}, {"processes", "pids", "pids.max", "pids.max"},
	} {
		limit := groupLimit(groups, base, kind.controller, kind.file1, kind.file2)
		if limit == "" {
			missing = append(missing, kind.what)
			continue
		}
		have = append(have, kind.what+" "+limit)
	}
	if len(missing) > 0 {
		return notHeld("no limit on %s", strings.Join(missing, " and "))
	}
	return held("%s", strings.Join(have, ", "))
}

// groupPrefix begins the name of every cgroup that package native makes.
const groupPrefix = "postern-"

// groupLimit reads one limit of the sandbox's own group, of version 1 or 2; "" when there is none.
func groupLimit(groups, base, controller, file1, file2 string) string {
	for line := range strings.Lines(groups) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 || !strings.HasPrefix(filepath.Base(part[2]), groupPrefix) {
			continue
		}
		file := ""
		switch {
		case part[1] == "":
			file = filepath.Join(base, part[2], file2)
		case slices.Contains(strings.Split(part[1], ","), controller):
			file = filepath.Join(base, controller, part[2], file1)
		default:
			continue
		}
		text, err := readFile(file, maxKernelFile)
		if err != nil {
			continue
		}
		const unlimited = math.MaxInt64 / 2 // version 1 says so with a number near the largest
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && n < unlimited {
			return strconv.FormatUint(n, 10)
		}
	}
	return ""
}

// examineCredentials looks at where the profile's credentials are kept, never at what is there. The broker reads them only when a
// request needs them, and refuses then what is refused here.
func examineCredentials(credentials map[gate.CredentialName]config.Credential, euid int) outcome {
	if len(credentials) == 0 {
		return nothingToHold("the profile uses no credential")
	}
	var good, bad, mend []string
	for name, c := range credentials {
		problem, remedy := sourceProblem(c.Source, euid)
		if problem == "" {
			good = append(good, name.String())
			continue
		}
		bad, mend = append(bad, name.String()+": "+problem), append(mend, remedy)
	}
	slices.Sort(good)
	slices.Sort(bad)
	slices.Sort(mend)
	if len(bad) > 0 {
		return notHeld("%s", strings.Join(bad, "; ")).mend(strings.Join(slices.Compact(mend), "\n"))
	}
	return held("%s", strings.Join(good, ", "))
}

func sourceProblem(s config.Source, euid int) (problem, remedy string) {
	if s.File == "" {
		if len(s.Command) == 0 {
			return "no source", "name a file or a command under source:"
		}
		if _, err := exec.LookPath(s.Command[0]); err != nil {
			return err.Error(), "install " + s.Command[0] + ", or name another command"
		}
		return "", ""
	}
	st, err := os.Stat(s.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.File + " does not exist", "log in with the tool that writes it, or write the value to it: (umask 077; cat >" + s.File + ")"
	case err != nil:
		return err.Error(), "see that " + s.File + " can be reached"
	case !st.Mode().IsRegular():
		return s.File + " is not a regular file", "name the file itself"
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Sprintf("%s has mode %04o, so others can read or change it", s.File, st.Mode().Perm()), "chmod 600 " + s.File
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != euid && sys.Uid != 0 {
		return s.File + " belongs to another user", "chown it, or copy it to a file of your own"
	}
	return "", ""
}

// mostVerified bounds what is verified here: a large log takes longer than a doctor should.
const mostVerified = 64 << 20

func examineChain(c *config.Compiled) outcome {
	dir, err := auditDir(c)
	if err != nil {
		return notHeld("%v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return notHeld("%v", err)
	}
	var size int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	if size > mostVerified {
		return unavailable("%s holds %d MB, which takes a while to verify", dir, size>>20).mend("postern audit verify reads all of it")
	}
	r, err := journal.Verify(dir)
	if err != nil {
		return notHeld("%v", err)
	}
	if bad, damaged := r.First(); damaged {
		return notHeld("%s line %d: %s", filepath.Join(dir, bad.Name), bad.Line, bad.Problem)
	}
	return held("%s: %d sessions, %d records", dir, r.Sessions, r.Records)
}

const maxKernelFile = 64 << 10

// readFile reads a file of at most so many bytes; more is an error.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(bufio.NewReader(f), most+1))
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, fmt.Errorf("%s: more than %d bytes", name, most)
	}
	return []byte(b.String()), nil
}
