package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md anew")

const cliPage = "../../docs/reference/cli.md"

// TestReferencePageListsEveryCommand keeps docs/reference/cli.md as what the commands say of themselves.
func TestReferencePageListsEveryCommand(t *testing.T) {
	want := []byte(cliPageText())
	if *update {
		if err := os.WriteFile(cliPage, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(cliPage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the page is out of date; run: go test ./cmd/postern -run ReferencePage -update")
	}
}

func cliPageText() string {
	root := newRoot()
	var b strings.Builder
	b.WriteString(`# The command line

<!-- Written by go test ./cmd/postern -run ReferencePage -update; do not edit. -->

§postern COMMAND --help§ prints what stands here. Flags stand before or after arguments, but those of §postern run§ before its command;
§--§ ends them. An error is one line on standard error that begins with §postern:§, and often a second with the remedy after §hint:§.

| exit status | of §postern run§ | of every other command |
| --- | --- | --- |
| 0 | the command's own | done |
| 1 | the command's own | it could not be done, or what was checked does not hold |
| 2 | the command's own | the command line was wrong |
| 125 | postern failed, or its command line was wrong: the command was not run, or was stopped | |
| 126 | the command could not be executed | |
| 127 | the command was not found | |
| 128+N | the command died of signal N | |

| variable | |
| --- | --- |
| §XDG_CONFIG_HOME§ | where §postern/postern.yaml§ and §postern/presets§ are, else §~/.config§ |
| §XDG_STATE_HOME§ | where §postern/audit§ and the list of trusted policies are, else §~/.local/state§; root's log is in §/var/lib/postern/audit§ |
| §NO_COLOR§ | no colour, also on a terminal |

| command | |
| --- | --- |
`)
	var leaves []*cobra.Command
	for _, g := range groupsOf(root) {
		for _, c := range g.commands {
			for _, leaf := range append([]*cobra.Command{c}, commands(c)...) {
				if !leaf.HasSubCommands() {
					leaves = append(leaves, leaf)
				}
			}
		}
	}
	for _, c := range leaves {
		fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	for _, c := range leaves {
		writeCommand(&b, c)
	}
	return strings.ReplaceAll(b.String(), "§", "`")
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n    %s\n\n", c.CommandPath(), c.Short, useLine(c))
	b.WriteString(strings.ReplaceAll(c.Long, "\n  ", "\n      ") + "\n") // what is indented is a block of code
	if flags := flagsOf(c); flags.HasFlags() {
		b.WriteString("\n| flag | |\n| --- | --- |\n")
		flags.VisitAll(func(f *pflag.Flag) {
			value, text := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if value != "" {
				name += " " + value
			}
			if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "[]" {
				text += " (default §" + f.DefValue + "§)"
			}
			fmt.Fprintf(b, "| §%s§ | %s |\n", name, strings.ReplaceAll(text, "|", `\|`))
		})
	}
	b.WriteString("\n```sh\n")
	for line := range strings.Lines(c.Example) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	b.WriteString("\n```\n\n| exit status | |\n| --- | --- |\n")
	for line := range strings.Lines(exitsOf(c)) {
		code, text, _ := strings.Cut(line, " ")
		fmt.Fprintf(b, "| %s | %s |\n", code, strings.TrimSpace(text))
	}
}

// TestCommandsOfTheDocumentationExist parses every call of postern in a block of code: the command, its flags, how many arguments.
func TestCommandsOfTheDocumentationExist(t *testing.T) {
	pages := []string{"../../README.md", "../../CONTRIBUTING.md", "../../examples/README.md"}
	err := filepath.WalkDir("../../docs", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, name := range pages {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lead, n := "    ", 0 // what stands before a command: outside of fences an indentation
		for line := range strings.Lines(string(src)) {
			n++
			if info, ok := strings.CutPrefix(line, "```"); ok {
				kind, _, _ := strings.Cut(strings.TrimSpace(info), " ")
				lead = map[string]string{"sh": "", "console": "$ ", "": "    "}[kind]
				if kind != "sh" && lead == "" {
					lead = "no commands in "
				}
				continue
			}
			call, ok := strings.CutPrefix(line, lead+"postern ")
			if !ok || strings.Contains(line, "[flags]") { // the form of a command is not a command
				continue
			}
			about, rest, err := newRoot().Find(words(strings.TrimSpace(call)))
			if err == nil {
				err = about.ParseFlags(rest)
			}
			if err == nil {
				err = about.ValidateArgs(about.Flags().Args())
			}
			if err != nil || about.HasSubCommands() {
				t.Errorf("%s:%d: %q: %v", name, n, line, err)
			}
			calls++
		}
	}
	if calls < 30 {
		t.Errorf("found only %d calls", calls)
	}
}
