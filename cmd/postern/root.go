// Postern runs a command in a sandbox that holds no credential, behind a gateway that does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"postern/internal/daemon"
)

// Exit codes. A command that ran decides its own; these are postern's.
const (
	exitUsage = 2   // the command line was wrong
	exitFault = 125 // postern failed, so the command was not run or was stopped
)

// The voice of this program: a message says what, where, and how to mend it; errors go to standard error and begin with "postern:".

// exitError carries an exit code out of a command. A nil Err has already been explained.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			fmt.Fprintln(stderr, "postern:", exit.err)
		}
		return exit.code
	}
	fmt.Fprintln(stderr, "postern:", err)
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "postern",
		Short: "Run a coding agent in a sandbox that holds no credential",
		Long: `postern runs a command in a sandbox that holds no credential at all. All its traffic, from any program and
without proxy settings, lands on a gateway outside the sandbox. The gateway refuses what policy does not allow,
puts the real credential on exactly the requests that may carry it, scrubs it from the answers, and writes down
what happened. If postern stops, the sandbox has no network.`,
		Example: `  postern init                      # write a first postern.yaml from what is here
  postern run -- claude             # run an agent
  postern log --denied              # what it was refused, and why
  postern explain EVENT             # which rule decided, and what line would allow it`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{exitUsage, fmt.Errorf("%w\n  hint: %s --help", err, c.CommandPath())}
	})
	root.AddCommand(newRunCmd(), newInitCmd(), newPolicyCmd(), newPresetCmd(), newLogCmd(), newAuditCmd(), newExplainCmd(), newDoctorCmd(), newVersionCmd())
	return root
}

func main() {
	daemon.Init(os.Args)
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}
