package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"postern/internal/operator/config"
	"postern/internal/sandbox/inspect"
)

// console is the inspector's standard input, output and error, and the other ends of them.
type console struct {
	stdin, stdout, stderr *os.File // the sandbox's ends

	plan, findings, complaints *os.File // ours
	drained                    sync.WaitGroup
	complaint                  bytes.Buffer // of at most maxComplaint bytes; read it after close
}

const maxComplaint = 8 << 10

func openConsole() (*console, error) {
	c := &console{}
	for _, pipe := range []struct{ read, write **os.File }{{&c.stdin, &c.plan}, {&c.findings, &c.stdout}, {&c.complaints, &c.stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			c.close()
			return nil, err
		}
		*pipe.read, *pipe.write = r, w
	}
	c.drained.Go(func() {
		_, _ = io.CopyN(&c.complaint, c.complaints, maxComplaint)
		_, _ = io.Copy(io.Discard, c.complaints) // until the last writer is gone
	})
	return c, nil
}

// handOver gives up the ends that the sandbox has by now: when it goes, ours see it.
func (c *console) handOver() {
	c.stdin.Close()
	c.stdout.Close()
}

// close ends all of it. It may be called again.
func (c *console) close() {
	for _, f := range []*os.File{c.stdin, c.stdout, c.stderr, c.plan, c.findings} {
		if f != nil {
			f.Close()
		}
	}
	c.drained.Wait()
	if c.complaints != nil {
		c.complaints.Close()
	}
}

// examineInside lets the inspector run, and then asks the sinks what they heard.
func (d *doctor) examineInside(ctx context.Context) {
	plan, err := json.Marshal(d.plan())
	if err != nil || len(plan) > inspect.MaxPlan {
		return // every check then says that the inspector did not speak
	}
	d.console.handOver()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(inspect.MaxTime, func() { cancel(errors.New("the inspector took too long")) })
	defer late.Stop()

	var talk sync.WaitGroup
	found := map[string]inspect.Finding{}
	talk.Go(func() {
		_, _ = d.console.plan.Write(plan) // if nobody reads it, nobody answers
		d.console.plan.Close()
	})
	talk.Go(func() { found = readFindings(d.console.findings) })
	code, err := d.wait(ctx, cancel)
	talk.Wait()

	for _, c := range inspect.Checks() {
		if f, ok := found[c.ID]; ok {
			d.found[c.ID] = outcome{Result: inspect.Result{Status: f.Status, Evidence: f.Evidence}}
		}
	}
	if err == nil && code != 0 {
		err = fmt.Errorf("the inspector ended with %d", code)
	}
	d.broke = err
	d.sinks.settle(ctx)
	_, made := found[inspect.KnockID]
	for network, id := range map[string]string{"tcp": "network.host_tcp", "udp": "network.host_udp", "unix": "network.host_unix"} {
		d.found[id] = d.sinks.verdict(network, made)
	}
}

// readFindings believes nothing but the form: whoever runs in the sandbox could write there.
func readFindings(r io.Reader) map[string]inspect.Finding {
	found := map[string]inspect.Finding{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), inspect.MaxFinding)
	for range len(inspect.Checks()) + 1 {
		if !lines.Scan() {
			break
		}
		var f inspect.Finding
		if json.Unmarshal(lines.Bytes(), &f) == nil && f.ID != "" {
			found[f.ID] = f
		}
	}
	_, _ = io.Copy(io.Discard, r) // let the writer end
	return found
}

// Addresses that nobody has, beyond the host: TEST-NET-3 (RFC 5737) and the documentation network of RFC 9637.
const (
	public4 = "203.0.113.7"
	public6 = "3fff::7"
)

func (d *doctor) plan() *inspect.Plan {
	p := &inspect.Plan{
		Namespaces: d.machine.namespaces, Witness: d.machine.witness, Targets: d.sinks.targets, Nonce: d.sinks.attempt,
		Host: "doctor-" + nonce() + ".invalid", Public4: public4, Metadata: []string{"169.254.169.254:80", "100.100.100.200:80"},
		Synthetic: []string{"198.18.0.0/15", "fd00::/8"}, CA: string(d.gateway.Authority.PEM()),
		Homes: d.homes(), Sockets: agentSockets(os.Getenv), Declared: d.declared(), Absent: d.absent(), ReadOnly: d.sources,
	}
	if d.set.IPv6 {
		p.Public6 = public6
		p.Metadata = append(p.Metadata, "[fd00:ec2::254]:80")
	}
	for _, kv := range d.given.Env {
		name, value, _ := strings.Cut(kv, "=")
		if fromHost(name, value, d.profile) {
			continue
		}
		p.Variables = append(p.Variables, name)
		if d.gateway.Placeholders.In(value) {
			p.Placeholders = append(p.Placeholders, name)
		}
	}
	return p
}

// fromHost reports whether a variable of the sandbox is one of ours that it was not meant to have.
func fromHost(name, value string, c *config.Compiled) bool {
	own, ok := os.LookupEnv(name)
	if !ok || own != value || slices.Contains(inherited(), name) {
		return false
	}
	_, declared := c.Env[name]
	return !declared && !slices.Contains([]string{"HOME", "USER", "LOGNAME", "PWD"}, name)
}

// homes are the sandbox's home directory and those of whoever runs postern, also by way of sudo.
func (d *doctor) homes() []string {
	list := []string{d.home}
	for _, uid := range []string{strconv.Itoa(os.Getuid()), os.Getenv("SUDO_UID")} {
		u, err := user.LookupId(uid)
		if err != nil || !filepath.IsAbs(u.HomeDir) || filepath.Clean(u.HomeDir) == "/" || slices.Contains(list, filepath.Clean(u.HomeDir)) {
			continue
		}
		list = append(list, filepath.Clean(u.HomeDir))
	}
	return list
}

// agentSockets are those that the caller's variables name.
func agentSockets(getenv func(string) string) (list []string) {
	for _, name := range []string{"SSH_AUTH_SOCK", "DOCKER_HOST", "CONTAINER_HOST", "DBUS_SESSION_BUS_ADDRESS"} {
		path := getenv(name)
		for _, scheme := range []string{"unix://", "unix:path="} {
			path = strings.TrimPrefix(path, scheme)
		}
		if path, _, _ = strings.Cut(path, ","); filepath.IsAbs(path) {
			list = append(list, path)
		}
	}
	return list
}

// declared is what the sandbox was given by name.
func (d *doctor) declared() []string {
	list := []string{runDir}
	for _, f := range d.given.Files {
		list = append(list, f.Path)
	}
	for _, m := range slices.Concat(d.given.Mounts, d.given.Tools) {
		target := m.Target
		if target == "" {
			target = m.Source
		}
		list = append(list, target)
	}
	return list
}

// absent is what of this host must not be readable inside: the marker, postern's own directories, and the credentials' sources.
func (d *doctor) absent() []string {
	return append(ownDirectories(d.profile), filepath.Join(d.scratch, "marker"))
}
