package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// exitNote is the annotation in which a command says its exit status, where usualExits are not all of it.
const exitNote = "exit"

const usualExits = `0    done
1    it could not be done; the reason is on standard error
2    the command line was wrong`

// ends annotates a command with its exit status.
func ends(text string) map[string]string { return map[string]string{exitNote: text} }

func exitsOf(c *cobra.Command) string {
	if text := c.Annotations[exitNote]; text != "" {
		return text
	}
	return usualExits
}

// writeHelp writes what a person reads who asks for help: first what the command is for, then an example, and then the details.
func writeHelp(out io.Writer, c *cobra.Command) {
	fmt.Fprintf(out, "%s\nUsage:\n  %s\n", wrap(c.Long, helpWidth), useLine(c))
	if c.Example != "" {
		fmt.Fprintf(out, "\nExamples:\n%s\n", c.Example)
	}
	for _, g := range groupsOf(c) {
		fmt.Fprintf(out, "\n%s:\n", g.title)
		for _, sub := range g.commands {
			fmt.Fprintf(out, "  %-11s %s\n", sub.Name(), sub.Short)
		}
	}
	if flags := flagsOf(c); flags.HasFlags() {
		fmt.Fprintf(out, "\nFlags:\n%s", flags.FlagUsagesWrapped(helpWidth))
	}
	if c.HasSubCommands() {
		fmt.Fprintf(out, "\n%s COMMAND --help says more of each.\n", c.CommandPath())
		return
	}
	fmt.Fprintf(out, "\nExit status:\n  %s\n", strings.ReplaceAll(exitsOf(c), "\n", "\n  "))
}

// helpWidth is how many columns of a terminal help needs.
const helpWidth = 100

// wrap breaks paragraphs into lines of at most so many columns. Indented lines stay as they are.
func wrap(text string, width int) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, " ") {
			b.WriteString(paragraph + "\n\n")
			continue
		}
		column := 0
		for word := range strings.FieldsSeq(paragraph) {
			n := utf8.RuneCountInString(word)
			switch {
			case column == 0:
			case column+1+n > width:
				b.WriteString("\n")
				column = 0
			default:
				b.WriteString(" ")
				column++
			}
			b.WriteString(word)
			column += n
		}
		b.WriteString("\n\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// useLine is how the command is written; commands that only hold others are written with one of them.
func useLine(c *cobra.Command) string {
	if c.HasSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	line, _ := strings.CutSuffix(c.CommandPath(), c.Name())
	name, rest, _ := strings.Cut(c.Use, " ")
	if flagsOf(c).HasFlags() && !strings.Contains(rest, "[flags]") {
		rest = "[flags] " + rest
	}
	return strings.TrimSpace(line + name + " " + rest)
}

// flagsOf are a command's own flags but --help, which every command has.
func flagsOf(c *cobra.Command) *pflag.FlagSet {
	set := pflag.NewFlagSet(c.Name(), pflag.ContinueOnError)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			set.AddFlag(f)
		}
	})
	return set
}

// group is some commands of one kind, in the order in which a person meets them.
type group struct {
	title    string
	commands []*cobra.Command
}

func groupsOf(c *cobra.Command) []group {
	all := slices.DeleteFunc(slices.Clone(c.Commands()), func(s *cobra.Command) bool { return s.Hidden })
	if len(c.Groups()) == 0 {
		if len(all) == 0 {
			return nil
		}
		return []group{{"Commands", all}}
	}
	var list []group
	for _, g := range c.Groups() {
		list = append(list, group{g.Title, slices.DeleteFunc(slices.Clone(all), func(s *cobra.Command) bool { return s.GroupID != g.ID })})
	}
	return list
}

func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND…]",
		Short:   "Say what a command does, and how it is written",
		Long:    `Prints the same as COMMAND --help. Without a command it lists them all.`,
		Example: "  postern help run\n  postern help policy explain",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = unknownCommand(about, rest[0])
			}
			if err != nil {
				return err
			}
			writeHelp(c.OutOrStdout(), about)
			return nil
		},
	}
}

func newCompletionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script of bash, zsh or fish",
		Long: `Prints a script that teaches SHELL (bash, zsh or fish) the commands and flags of postern, the names of presets, and the profiles
of the policy found where you type. Source it in the shell's startup file, or put it where the shell looks for such scripts.`,
		Example: `  source <(postern completion bash)
  postern completion zsh > "${fpath[1]}/_postern"
  postern completion fish > ~/.config/fish/completions/postern.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			root, out := c.Root(), c.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return usage(fmt.Sprintf("%q is not a shell that postern knows", args[0]), "bash, zsh or fish")
		},
	}
}
