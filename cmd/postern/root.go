// Postern runs a command in a sandbox that holds no credential, behind a gateway that does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"postern/internal/daemon"
	"postern/internal/operator/strictyaml"
)

// Exit codes. A command that ran decides its own; these are postern's.
const (
	exitUsage = 2   // the command line was wrong
	exitFault = 125 // postern failed, so the command was not run or was stopped
)

// The voice of this program: a message says what, where, and how to mend it; errors go to standard error and begin with "postern:".
// How to mend it stands on a line of its own after "  hint: ".

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

// usage is an error of the command line.
func usage(text, hint string) error {
	return &exitError{exitUsage, errors.New(text + "\n  hint: " + hint)}
}

func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := misspelt(root, args)
	if err == nil {
		err = root.ExecuteContext(context.Background())
	}
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

// misspelt finds a command that does not exist before its flags are taken for the wrong command's.
func misspelt(root *cobra.Command, args []string) error {
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		return nil // a shell asks for completions
	}
	c, rest, err := root.Find(args)
	if err != nil || !c.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil
	}
	return unknownCommand(c, rest[0])
}

// unknownCommand names the command that was probably meant. At the top that may be a program to run.
func unknownCommand(c *cobra.Command, name string) error {
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	hint := strictyaml.DidYouMean(name, names)
	if hint == "" {
		hint = c.CommandPath() + " --help"
		if _, err := exec.LookPath(name); err == nil && !c.HasParent() {
			hint = "to run it in a sandbox: postern run -- " + name
		}
	}
	text := "unknown command"
	if c.HasParent() {
		text += " of " + c.CommandPath()
	}
	return usage(fmt.Sprintf("%s: %q", text, name), hint)
}

// flagHint names the flag that was probably meant.
func flagHint(c *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if hint := strictyaml.DidYouMean(unknown.GetSpecifiedName(), names); hint != "" {
			return strings.Replace(hint, `"`, `"--`, 1)
		}
	}
	return c.CommandPath() + " --help"
}

// takes lets a command have at least and at most so many arguments; any other number is an error of the command line.
func takes(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("an argument is missing", useLine(c))
		case len(args) > most:
			return usage(fmt.Sprintf("unexpected argument %q", args[most]), useLine(c))
		}
		return nil
	}
}

func newRoot() *cobra.Command {
	root := holds(&cobra.Command{
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
		Version:       versionLine(),
		SilenceUsage:  true,
		SilenceErrors: true,
	})
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { writeHelp(c.OutOrStdout(), c) })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(err.Error(), flagHint(c, err)) })
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(newHelpCmd())
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run", []*cobra.Command{newInitCmd(), newRunCmd(), newDoctorCmd()}},
		{"See what happened", []*cobra.Command{newLogCmd(), newExplainCmd(), newAuditCmd()}},
		{"Decide what may happen", []*cobra.Command{newPolicyCmd(), newPresetCmd()}},
		{"About postern", []*cobra.Command{newVersionCmd(), newCompletionCmd()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("About postern")
	root.InitDefaultHelpCmd() // before misspelt looks for it
	root.Flags().Bool("version", false, "print the version, as postern version does")
	return root
}

// holds makes a command that only holds others print its help.
func holds(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

func main() {
	_ = os.Unsetenv("GODEBUG") // the caller's switches must not change how TLS and names are handled here; the runtime follows at once
	daemon.Init(os.Args)
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}
