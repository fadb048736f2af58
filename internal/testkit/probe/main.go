// Command probe attacks from inside the sandbox and says what came of it, one line of JSON for each attempt.
//
//	probe COMMAND [ARG…] [-- COMMAND [ARG…]]…
//
// It holds no secret: what it searches for it knows only by hash (see package canary). Its exit status says nothing; the tests judge
// by the lines and, above all, by what arrived at the sinks.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"syscall"

	"golang.org/x/sys/unix"
)

// finding is one line; package testkit reads it back.
type finding struct {
	Probe string         `json:"probe"`
	OK    bool           `json:"ok"` // what was tried succeeded
	Error string         `json:"error,omitempty"`
	Errno string         `json:"errno,omitempty"`
	Data  map[string]any `json:"data,omitempty"`
}

// command tries one thing; a nil error means that it succeeded.
type command func(args []string) (map[string]any, error)

func commands() map[string]command {
	return map[string]command{
		"tcp": tcp, "udp": udp, "icmp": icmp, "unix": unixSocket, "loop": loop, "dns": dns, "listen": listen,
		"tls": rawTLS, "http": request, "h2": rawH2, "ws": webSocket, "grpc": grpcBidi, "sse": events, "get": get, "put": put, "load": load,
		"socket": socket, "syscall": systemCall,
		"fds": fds, "status": status, "mounts": mounts, "links": links, "env": environment, "read": read, "write": write, "ls": list,
		"sweep": sweep, "agent": agent,
	}
}

func main() {
	out := json.NewEncoder(os.Stdout)
	table := commands()
	for _, args := range split(os.Args[1:]) {
		run, ok := table[args[0]]
		if !ok {
			names := make([]string, 0, len(table))
			for name := range table {
				names = append(names, name)
			}
			sort.Strings(names)
			fmt.Fprintf(os.Stderr, "probe: no command %q; there are %v\n", args[0], names)
			os.Exit(2)
		}
		data, err := run(args[1:])
		f := finding{Probe: args[0], OK: err == nil, Data: data}
		if err != nil {
			f.Error, f.Errno = err.Error(), errno(err)
		}
		if err := out.Encode(f); err != nil {
			os.Exit(1)
		}
	}
}

func split(args []string) [][]string {
	var all [][]string
	for len(args) > 0 {
		i := slices.Index(args, "--")
		if i < 0 {
			return append(all, args)
		}
		if i > 0 {
			all = append(all, args[:i])
		}
		args = args[i+1:]
	}
	return all
}

func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return ""
}

func usage(text string) (map[string]any, error) { return nil, errors.New("usage: " + text) }
