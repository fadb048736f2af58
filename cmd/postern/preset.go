package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"postern/internal/operator/preset"
	"postern/internal/operator/strictyaml"
)

func newPresetCmd() *cobra.Command {
	c := holds(&cobra.Command{
		Use:   "preset",
		Short: "List and show the presets that a policy can use",
		Long: `A preset is what a well-known client needs: hosts, methods and paths, where its credential travels, and what the sandbox is
given in the credential's place. A policy names presets under use:, and can name your own as well: docs/guide/presets.md.`,
		Example: `  postern preset list
  postern preset show claude`,
	})
	c.AddCommand(newPresetListCmd(), newPresetShowCmd())
	return c
}

func newPresetListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the presets that postern brings",
		Long: `Prints each preset with what it is for and the credential that it uses: the name that must stand under credentials: in the policy.
Presets of your own, in ~/.config/postern/presets or named by path, are not listed.`,
		Example: `  postern preset list`,
		Args:    takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, name := range preset.Names() {
				p, err := preset.Load(name)
				if err != nil {
					return err
				}
				credential := "no credential"
				if p.Credential != nil {
					credential = "credential " + p.Credential.Name.String()
					if !p.Credential.Required {
						credential += " (optional)"
					}
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Summary, credential)
			}
			return w.Flush()
		},
	}
}

func newPresetShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Print a preset as it is written",
		Long:  `Prints the YAML of a preset: what it allows and denies, where its credential travels, and what the sandbox is given instead.`,
		Example: `  postern preset show claude
  postern preset show npm > ~/.config/postern/presets/my-npm.yaml   # to begin one's own; change its name: too`,
		Args: takes(1, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return preset.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			src := preset.Source(args[0])
			if src == nil {
				hint := strictyaml.DidYouMean(args[0], preset.Names())
				if hint == "" {
					hint = "postern preset list"
				}
				return errors.New("no preset has this name\n  hint: " + hint)
			}
			_, err := c.OutOrStdout().Write(src)
			return err
		},
	}
}
