package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"postern/internal/operator/config"
)

// spoken is what the program says to a command line, and its exit status.
func spoken(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = execute(args, &out, &errs)
	return out.String(), errs.String(), code
}

// commands are all commands but the root, in the order of the tree.
func commands(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		list = append(append(list, sub), commands(sub)...)
	}
	return list
}

func TestWithoutArgumentsHelpIsPrinted(t *testing.T) {
	out, errs, code := spoken()
	help, _, _ := spoken("--help")
	named, _, _ := spoken("help")
	if code != 0 || errs != "" || out != help || out != named {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	for _, c := range commands(newRoot()) {
		if c.Parent().HasParent() {
			continue
		}
		contains(t, "help", out, "\n  "+c.Name()+" ", c.Short)
	}
	for _, holder := range []string{"policy", "preset", "audit"} {
		if out, _, code := spoken(holder); code != 0 || !strings.Contains(out, "Commands:") {
			t.Errorf("%s: exit %d\n%s", holder, code, out)
		}
	}
}

func TestWrongCommandLinesGetAHintAndTheirExitStatus(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "bin"))
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"rnu -- true":             {2, "postern: unknown command: \"rnu\"\n  hint: did you mean \"run\"?\n"},
		"rnu --profile ci":        {2, "postern: unknown command: \"rnu\"\n  hint: did you mean \"run\"?\n"},
		"zzzzzz":                  {2, "postern: unknown command: \"zzzzzz\"\n  hint: postern --help\n"},
		"help rnu":                {2, "postern: unknown command: \"rnu\"\n  hint: did you mean \"run\"?\n"},
		"policy chek":             {2, "postern: unknown command of postern policy: \"chek\"\n  hint: did you mean \"check\"?\n"},
		"help policy explan":      {2, "postern: unknown command of postern policy: \"explan\"\n  hint: did you mean \"explain\"?\n"},
		"log --denid":             {2, "postern: unknown flag: --denid\n  hint: did you mean \"--denied\"?\n"},
		"log --zzzzzzzzzz":        {2, "postern: unknown flag: --zzzzzzzzzz\n  hint: postern log --help\n"},
		"log -z":                  {2, "postern: unknown shorthand flag: 'z' in -z\n  hint: postern log --help\n"},
		"log extra":               {2, "postern: unexpected argument \"extra\"\n  hint: postern log [flags]\n"},
		"log -n ten":              {2, "postern: invalid argument \"ten\""},
		"log --since x":           {2, "postern: --since \"x\": not a duration\n  hint: 90s, 15m, 8h or 7d\n"},
		"explain":                 {2, "postern: an argument is missing\n  hint: postern explain [flags] EVENT\n"},
		"explain zzz":             {2, "postern: an event begins with e"},
		"completion csh":          {2, "postern: \"csh\" is not a shell that postern knows\n  hint: bash, zsh or fish\n"},
		"audit verify a b":        {2, "postern: unexpected argument \"b\"\n  hint: postern audit verify [flags] [DIR]\n"},
		"run":                     {125, "postern: no command to run\n  hint: postern run -- COMMAND\n"},
		"run --":                  {125, "postern: no command to run\n  hint: postern run -- COMMAND\n"},
		"run --profil ci -- true": {125, "postern: unknown flag: --profil\n  hint: did you mean \"--profile\"? (the command's own flags stand after --)\n"},
	} {
		out, errs, code := spoken(strings.Fields(line)...)
		if code != want.code || !strings.HasPrefix(errs, want.text) || out != "" {
			t.Errorf("postern %s: exit %d, want %d\n%s%s", line, code, want.code, out, errs)
		}
	}
}

func TestAProgramThatIsTakenForACommandCanBeRun(t *testing.T) {
	bin := t.TempDir()
	put(t, filepath.Join(bin, "claude"), "#!/bin/sh\n", 0o700)
	t.Setenv("PATH", bin)
	if _, errs, code := spoken("claude", "-p", "hello"); code != 2 || !strings.Contains(errs, "\n  hint: to run it in a sandbox: postern run -- claude\n") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// words splits a line of an example as a shell would, as far as examples need it.
func words(line string) (list []string) {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " > ")
	for i, part := range strings.FieldsFunc(strings.NewReplacer(`"`, "\x00", "'", "\x00").Replace(line)+" ", func(r rune) bool { return r == 0 }) {
		if i%2 == 1 {
			list = append(list, part)
		} else {
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}

func TestEveryCommandTeaches(t *testing.T) {
	root := newRoot()
	for _, c := range append(commands(root), root) {
		t.Run(c.CommandPath(), func(t *testing.T) {
			if c.Short == "" || len(c.Short) > 90 || strings.HasSuffix(c.Short, ".") || strings.ToUpper(c.Short[:1]) != c.Short[:1] {
				t.Errorf("Short is no line of its own: %q", c.Short)
			}
			if len(c.Long) < 60 || !strings.HasSuffix(strings.TrimSpace(c.Long), ".") {
				t.Errorf("Long teaches nothing: %q", c.Long)
			}
			for line := range strings.Lines(c.Long + "\n" + c.Example) {
				if len([]rune(strings.TrimRight(line, "\n"))) > 140 {
					t.Errorf("too long for a terminal: %q", line)
				}
			}
			if !strings.Contains(c.Example, c.CommandPath()) {
				t.Errorf("no example has %s: %q", c.CommandPath(), c.Example)
			}
			for line := range strings.Lines(c.Example) {
				_, call, ok := strings.Cut(line, "postern ")
				if !ok || strings.HasPrefix(strings.TrimSpace(line), "#") {
					continue
				}
				about, rest, err := newRoot().Find(words(strings.TrimSuffix(call, ")\n")))
				if err != nil || about.HasSubCommands() {
					t.Errorf("%q names no command", line)
					continue
				}
				if err := about.ParseFlags(rest); err != nil {
					t.Errorf("%q: %v", line, err)
				} else if err := about.ValidateArgs(about.Flags().Args()); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
			flagsOf(c).VisitAll(func(f *pflag.Flag) {
				if len(f.Usage) < 10 || strings.HasSuffix(f.Usage, ".") {
					t.Errorf("--%s: %q", f.Name, f.Usage)
				}
			})
			help, _, code := spoken(append(strings.Fields(c.CommandPath())[1:], "--help")...)
			if code != 0 || !c.HasSubCommands() && !strings.Contains(help, "\nExit status:\n") {
				t.Errorf("exit %d, and help is\n%s", code, help)
			}
		})
	}
}

func TestCompletionScriptsAreScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, errs, code := spoken("completion", shell)
		if code != 0 || errs != "" || len(script) < 1000 || !strings.Contains(script, "postern") {
			t.Errorf("%s: exit %d, %d bytes, %s", shell, code, len(script), errs)
		}
		if shell != "bash" {
			continue
		}
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("bash -n: %v\n%s", err, out)
		}
	}
}

func TestCompletionKnowsCommandsFlagsPresetsAndProfiles(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), "version: 1\nprofiles:\n  default: {}\n  nightly: {}\n", 0o600)
	for line, want := range map[string][]string{
		"aud": {"audit"}, "policy ex": {"explain"}, "log --den": {"--denied"}, "run --profile ": {"default", "nightly"},
		"run --log-level ": {"debug", "info", "warn", "error"}, "completion ": {"bash", "zsh", "fish"},
	} {
		out, _, code := spoken(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
		got := strings.Fields(out)
		if code != 0 || len(got) == 0 || !slices.Equal(got[:len(got)-1], want) {
			t.Errorf("%q: exit %d, %q, want %q", line, code, got, want)
		}
	}
	if out, _, _ := spoken(cobra.ShellCompNoDescRequestCmd, "preset", "show", ""); !strings.Contains(out, "claude\n") {
		t.Errorf("presets: %q", out)
	}
}
