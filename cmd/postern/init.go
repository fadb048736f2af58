package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"postern/internal/operator/config"
	"postern/internal/operator/survey"
)

func newInitCmd() *cobra.Command {
	var yes bool
	var dir string
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a first postern.yaml from what is here",
		Long: `Looks at the repository's origin, at which clients are on PATH, at which files hold credentials, and at the private registries
of your npm and pip settings, and writes a postern.yaml that allows what they need. It runs no program and prints no credential,
and asks before a policy uses one. Without a terminal it uses none, unless you say --yes; pushing is allowed only when you are asked.
It never overwrites a file. The file that it wrote is trusted; postern policy trust is for files that came from elsewhere.`,
		Example: `  postern init
  postern init --dir ~/src/widgets
  postern init --yes                # where nobody can be asked`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return runInit(c, dir, yes) },
	}
	c.Flags().BoolVar(&yes, "yes", false, "use every credential that is found, without asking")
	c.Flags().StringVar(&dir, "dir", "", "write to `DIR` (default: the top of the git working tree, else the working directory)")
	return c
}

func runInit(c *cobra.Command, dir string, yes bool) error {
	out := c.OutOrStdout()
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	look := dir
	if look == "" {
		look = "."
	}
	if look, err = filepath.Abs(look); err != nil {
		return err
	}
	found := survey.Look(survey.Config{Dir: look, Home: home, LookPath: exec.LookPath})
	if dir == "" && found.Root != "" {
		look = found.Root
	}
	path := filepath.Join(look, config.Name)
	if _, err := os.Lstat(path); err == nil {
		return errors.New(visible(path) + " exists\n  hint: postern policy check reads it; move it away to begin anew")
	}
	printFound(out, found)
	answers, err := askCredentials(c, found, yes)
	if err != nil {
		return err
	}
	text := []byte(found.Policy(answers))
	if _, err := config.Parse(path, text); err != nil {
		return fmt.Errorf("the policy for what is here would not be valid: %w", err)
	}
	if err := config.WriteNewFile(path, text); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return errors.New(visible(path) + " exists")
		}
		return err
	}
	if err := trustFile(path); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nwrote %s\n", visible(path))
	next := "bash"
	for _, cl := range found.Clients {
		if cl.Program == "claude" || cl.Program == "codex" || cl.Program == "gemini" {
			next = cl.Program
			break
		}
	}
	fmt.Fprintf(out, "next: postern policy check, then postern run -- %s\n", next)
	return nil
}

func trustFile(path string) error {
	f, err := config.Load(path)
	if err != nil {
		return err
	}
	t, err := config.DefaultTrust()
	if err != nil {
		return err
	}
	return t.Add(f)
}

func printFound(out io.Writer, f *survey.Found) {
	if !f.Origin.IsZero() {
		fmt.Fprintln(out, "repository:", f.Origin)
	}
	if f.OriginHint != "" {
		fmt.Fprintln(out, "note:", visible(f.OriginHint))
	}
	for _, c := range f.Clients {
		fmt.Fprintf(out, "on PATH: %s (preset %s)\n", c.Program, c.Preset)
	}
	for _, r := range f.Registries {
		fmt.Fprintf(out, "registry: %s (%s)\n", r.Host, r.File)
	}
	for _, n := range f.Notes {
		fmt.Fprintln(out, "note:", visible(n))
	}
}

// askCredentials asks before a policy uses any credential. Where nobody can be asked, none is used.
func askCredentials(c *cobra.Command, f *survey.Found, yes bool) (survey.Answers, error) {
	var a survey.Answers
	out := c.OutOrStdout()
	in, isFile := c.InOrStdin().(*os.File)
	interactive := !isFile || term.IsTerminal(int(in.Fd()))
	for _, cand := range f.Credentials {
		ok := yes
		if !yes && interactive {
			var err error
			if ok, err = confirm(c, fmt.Sprintf("Let the gateway use %s as the credential %s?", cand.Where, cand.Name)); err != nil {
				return a, err
			}
		}
		switch {
		case ok:
			a.Credentials = append(a.Credentials, cand.Name)
			fmt.Fprintf(out, "credential %s: %s\n", cand.Name, cand.Where)
			if cand.Loose {
				fmt.Fprintln(out, "note: others can read that file, so it will be refused until you chmod it to 600")
			}
		case !interactive:
			fmt.Fprintf(out, "credential %s: not used; nobody to ask (--yes uses %s)\n", cand.Name, cand.Where)
		}
	}
	if !yes && interactive && !f.Origin.IsZero() && f.Origin.Host().String() == "github.com" {
		for _, name := range a.Credentials {
			if name == "github" {
				var err error
				a.Push, err = confirm(c, "Let the sandbox push to "+f.Origin.String()+"?")
				return a, err
			}
		}
	}
	return a, nil
}
