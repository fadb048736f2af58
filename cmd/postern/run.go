package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"postern/internal/daemon"
)

func newRunCmd() *cobra.Command {
	var o daemon.RunOptions
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG…]",
		Short: "Run a command in a sandbox that holds no credential",
		Long: `Runs COMMAND in new namespaces: its own user, mounts, processes and network. The working directory is writable, the
system is read-only, the home directory is empty but for what presets declare. Every connection it makes lands on the
gateway, which allows what postern.yaml allows and nothing else.

The policy is --config FILE, else the nearest postern.yaml at or above the working directory that you trust
(see postern policy trust), else the one in your config directory. Without any, everything is refused.

Exit status: the command's own; 128+N when it died of signal N; 125 when postern failed, 126 when the command could
not be executed, 127 when it was not found.`,
		Example: `  postern run -- claude -p "fix the failing test"
  postern run --profile ci -- npm ci
  postern run --mount ~/data:/data -- python3 report.py
  postern run -- bash               # look around: env, ls ~, curl https://example.com`,
		Args:                  cobra.MinimumNArgs(1),
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			o.Command = args
			o.Stdin, o.Stdout, o.Stderr = os.Stdin, os.Stdout, os.Stderr
			code, err := daemon.Run(c.Context(), o)
			if err != nil {
				return &exitError{exitFault, err}
			}
			if code != 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.Config, "config", "", "policy file; naming it is trusting it")
	f.StringVar(&o.Profile, "profile", "default", "profile of the policy file")
	f.StringArrayVar(&o.Mounts, "mount", nil, "mount `SRC[:DST][:rw]` into the sandbox, read-only unless :rw (repeatable)")
	f.StringArrayVar(&o.Env, "env", nil, "set `NAME=VALUE` in the sandbox, or pass NAME through (repeatable)")
	f.StringVar(&o.Workdir, "workdir", "", "directory to work in, mounted writable (default: the current one)")
	f.IntVar(&o.UID, "uid", -1, "run as this user id; only root may choose (default: yourself, or when root the directory's owner)")
	f.BoolVar(&o.AllowDangerousMount, "allow-dangerous-mount", false, "allow mounts that hold credentials or control of the host")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "say nothing but errors")
	f.StringVar(&o.LogLevel, "log-level", "warn", "gateway log on standard error: debug, info, warn, error")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return &exitError{exitFault, fmt.Errorf("%w\n  hint: postern's own flags stand before --, the command's after it", err)}
	})
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &exitError{exitFault, errors.New("no command to run\n  hint: postern run -- COMMAND")}
		}
		return nil
	}
	return c
}
