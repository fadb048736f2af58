package inspect

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func processChecks() []Check {
	return []Check{
		{ID: "process.descriptors", Title: "nothing but standard input, output and error is open", Essential: true, Means: "an inherited descriptor keeps its power on the host", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return onlyStdio() }},
		{ID: "process.environment", Title: "only declared variables are in the environment", Essential: true, Means: "the caller's variables, where tokens live, reach the sandbox", Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return onlyDeclared(os.Environ(), p.Variables) }},
		{ID: "process.credentials", Title: "no variable holds a credential", Essential: true, Means: "the command, and whatever it runs, can use it",
			Remedy: "take the variable out of `env:` and name the credential under `credentials:`: the sandbox is given a placeholder then",
			run:    func(_ context.Context, p *Plan) Result { return noCredential(os.Environ(), p.Placeholders) }},
		{ID: "process.core", Title: "core dumps are off", Essential: true, Means: "memory is written to files, or handed to a program of the host", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return noCore(limitOf(unix.RLIMIT_CORE)) }},
		{ID: "process.rlimits", Title: "processes are limited", Means: "a fork bomb reaches the host", Remedy: "set `sandbox: {processes: N}` in the profile",
			run: func(context.Context, *Plan) Result { return finite(limitOf(unix.RLIMIT_NPROC)) }},
	}
}

// onlyStdio looks for descriptors that survive an exec: this process's own do not.
func onlyStdio() Result {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return notHeld("%v", err)
	}
	var extra []string
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			target = err.Error()
		}
		extra = append(extra, e.Name()+" → "+target)
	}
	if len(extra) > 0 {
		return notHeld("%s", strings.Join(extra, ", "))
	}
	return held("0, 1 and 2 were inherited")
}

func onlyDeclared(environ, declared []string) Result {
	var extra []string
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); !slices.Contains(declared, name) {
			extra = append(extra, name)
		}
	}
	if len(extra) > 0 {
		slices.Sort(extra)
		return notHeld("also %s", strings.Join(extra, ", "))
	}
	return held("%d variables, all declared", len(environ))
}

// noCredential goes by names and by the shapes that providers give their keys. It names variables and never quotes them.
func noCredential(environ, placeholders []string) Result {
	var found []string
	stand := 0
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case slices.Contains(placeholders, name):
			stand++
		case value != "" && (secretName(name) && !pathOrSwitch(value) || secretShape(value)):
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		slices.Sort(found)
		return notHeld("%s", strings.Join(found, ", "))
	}
	return held("%d variables, %d of them placeholders", len(environ), stand)
}

func secretName(name string) bool {
	name = strings.ToUpper(name)
	for _, word := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "PRIVATE", "APIKEY", "PAT"} {
		if slices.Contains(strings.Split(name, "_"), word) || slices.Contains(strings.Split(name, "_"), word+"S") {
			return true
		}
	}
	return strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_AUTH") || strings.HasPrefix(name, "KEY_") || name == "KEY"
}

// pathOrSwitch reports whether a value is the name of a file, or yes or no.
func pathOrSwitch(value string) bool {
	return filepath.IsAbs(value) || slices.Contains([]string{"0", "1", "true", "false", "yes", "no", "on", "off", "never", "none"}, strings.ToLower(value))
}

func secretShape(value string) bool {
	const least = 16 // shorter values are words
	if len(value) < least {
		return false
	}
	for _, prefix := range []string{"sk-", "sk_live_", "rk_live_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "xapp-", "AKIA", "ASIA", "AIza", "ya29.", "npm_", "pypi-", "hf_", "dop_v1_", "eyJ", "-----BEGIN"} {
		if strings.HasPrefix(value, prefix) {
			return true
		}
	}
	return false
}

// limitOf is no limit where the kernel does not say.
func limitOf(resource int) unix.Rlimit {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return unix.Rlimit{Cur: math.MaxUint64, Max: math.MaxUint64}
	}
	return l
}

func noCore(l unix.Rlimit) Result {
	pattern, _ := readSmall("/proc/sys/kernel/core_pattern") // "" when it is not to be read
	switch {
	case l.Cur > 1 || l.Max > 1:
		return notHeld("RLIMIT_CORE is %s, at most %s", limitText(l.Cur), limitText(l.Max))
	case l.Max == 0 && len(pattern) > 0 && pattern[0] == '|':
		return notHeld("RLIMIT_CORE is 0, which does not keep the kernel from starting the host's %s", pattern)
	}
	return held("RLIMIT_CORE %d", l.Max)
}

func finite(l unix.Rlimit) Result {
	if l.Max == math.MaxUint64 {
		return notHeld("RLIMIT_NPROC is unlimited")
	}
	return held("RLIMIT_NPROC %s", limitText(l.Max))
}

func limitText(n uint64) string {
	if n == math.MaxUint64 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
