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

What is weaker than usual, in the policy or on this machine, is said on standard error before COMMAND starts.`,
		Example: `  postern run -- claude -p "fix the failing test"
  postern run --profile ci -- npm ci
  postern run --mount ~/data:/data -- python3 report.py
  postern run -- bash               # look around: env, ls ~, curl https://example.com`,
		Annotations: ends(`N      the command's own
128+N  the command died of signal N
125    postern failed: the command was not run, or was stopped
126    the command could not be executed
127    the command was not found`),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &exitError{exitFault, errors.New("no command to run\n  hint: postern run -- COMMAND")}
			}
			return nil
		},
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
	f.StringVar(&o.Config, "config", "", "policy `FILE`; naming it is trusting it (default: see above)")
	profileFlag(c, &o.Profile)
	f.StringArrayVar(&o.Mounts, "mount", nil, "mount `SRC[:DST][:rw]` into the sandbox, read-only unless :rw (repeatable)")
	f.StringArrayVar(&o.Env, "env", nil, "set `NAME[=VALUE]` in the sandbox; without =VALUE the one that it has here (repeatable)")
	f.StringVar(&o.Workdir, "workdir", "", "work in `DIR`, which is mounted writable (default: the current one)")
	f.IntVar(&o.UID, "uid", -1, "run as the user with this `ID`; only root may choose (default: yourself; for root, the directory's owner)")
	f.Lookup("uid").DefValue = "0" // zero is not shown: the text says what happens
	f.BoolVar(&o.AllowDangerousMount, "allow-dangerous-mount", false, "allow mounts that hold credentials or control of the host")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "say nothing but errors")
	f.StringVar(&o.LogLevel, "log-level", "warn", "log of the gateway on standard error, from this `LEVEL` on: debug, info, warn, error")
	_ = c.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that is not there
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{exitFault, fmt.Errorf("%w\n  hint: %s (the command's own flags stand after --)", err, flagHint(c, err))}
	})
	return c
}

// profileFlag gives a command the flag --profile, which a shell completes with the profiles of the policy that is found here.
func profileFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "profile", "default", "use this `PROFILE` of the policy")
	_ = c.RegisterFlagCompletionFunc("profile", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		path, _ := c.Flags().GetString("config")
		f, err := loadPolicy(path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f.Profiles(), cobra.ShellCompDirectiveNoFileComp
	})
}
