package inspect

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const mendStart = "postern makes this itself at every start: please report it, with the output of `postern doctor --json`"

// namespaceKinds are the names below /proc/self/ns and what each keeps apart.
func namespaceKinds() [][2]string {
	return [][2]string{
		{"user", "uids and capabilities count on the host"},
		{"mnt", "the host's file system is the sandbox's"},
		{"pid", "the host's processes can be seen and signalled"},
		{"net", "the host's network is open to the sandbox, around the gateway"},
		{"ipc", "System V shared memory and message queues of the host can be read"},
		{"uts", "the host's name can be seen"},
		{"cgroup", "the host's cgroup paths can be seen"},
	}
}

func namespaceChecks() []Check {
	var list []Check
	for _, k := range namespaceKinds() {
		kind := k[0]
		list = append(list, Check{
			ID: "namespaces." + kind, Title: kind + " namespace is the sandbox's own", Essential: true, Means: k[1], Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return ownNamespace(kind, p.Namespaces[kind]) },
		})
	}
	return append(list,
		Check{
			ID: "namespaces.nested", Title: "no further namespace can be made", Essential: true,
			Means: "a nested user namespace hands back capabilities, and with them kernel code that only root could reach", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return noMoreNamespaces("/proc/sys/user") },
		},
		Check{
			ID: "namespaces.processes", Title: "no process of the host is visible", Essential: true,
			Means: "command lines and environments of the host's processes can be read", Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return noWitness("/proc", p.Witness) },
		})
}

func ownNamespace(kind, host string) Result {
	own, err := os.Readlink("/proc/self/ns/" + kind)
	switch {
	case err != nil:
		return notHeld("cannot be told: %v", err)
	case host == "":
		return notHeld("the host's is not known")
	case own == host:
		return notHeld("%s is the host's", own)
	}
	return held("%s, not the host's %s", own, host)
}

// noMoreNamespaces reads the kernel's limits for this user namespace.
func noMoreNamespaces(dir string) Result {
	var open []string
	seen := 0
	for _, kind := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		text, err := readSmall(filepath.Join(dir, "max_"+kind+"_namespaces"))
		if err != nil {
			continue
		}
		if seen++; strings.TrimSpace(text) != "0" {
			open = append(open, kind)
		}
	}
	switch {
	case seen == 0:
		return notHeld("%s cannot be read", dir)
	case len(open) > 0:
		return notHeld("%s namespaces can be made", strings.Join(open, ", "))
	}
	return held("user.max_*_namespaces are 0")
}

// noWitness looks for a process of the host by the moment of its start, which pid namespaces do not translate.
func noWitness(proc string, w Witness) Result {
	if w == (Witness{}) {
		return notHeld("no process of the host is known to look for")
	}
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return notHeld("%s: %v", proc, err)
	}
	seen := 0
	for _, d := range dirs {
		if strings.Trim(d.Name(), "0123456789") != "" {
			continue
		}
		seen++
		if found, err := ReadWitness(filepath.Join(proc, d.Name())); err == nil && found == w {
			return notHeld("the gateway is process %s here", d.Name())
		}
	}
	if seen == 0 {
		return notHeld("%s shows no process, not even this one", proc)
	}
	return held("%d processes visible, the gateway not among them", seen)
}

// ReadWitness describes the process whose directory below /proc is given.
func ReadWitness(dir string) (Witness, error) {
	text, err := readSmall(filepath.Join(dir, "stat"))
	if err != nil {
		return Witness{}, err
	}
	_, rest, ok := strings.Cut(text, "(")
	i := strings.LastIndexByte(rest, ')')
	if !ok || i < 0 {
		return Witness{}, fmt.Errorf("%s/stat: no name", dir)
	}
	fields := strings.Fields(rest[i+1:])
	if len(fields) < 20 {
		return Witness{}, fmt.Errorf("%s/stat: %d fields", dir, len(fields))
	}
	return Witness{Start: fields[19], Comm: rest[:i]}, nil
}

// readSmall reads at most 256 KiB of a file that the kernel makes up.
func readSmall(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b strings.Builder
	_, err = io.Copy(&b, io.LimitReader(bufio.NewReader(f), 256<<10))
	return b.String(), err
}
