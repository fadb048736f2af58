package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/config"
	"postern/internal/operator/strictyaml"
)

func newPolicyCmd() *cobra.Command {
	c := holds(&cobra.Command{
		Use:   "policy",
		Short: "Check, explain, test and trust policy files",
		Long: `A policy file says which hosts, methods, paths and repositories a sandbox may use, and which credential goes where.
What it does not allow is refused. These commands read it exactly as postern run does. docs/reference/policy.md has every key.`,
		Example: `  postern policy check
  postern policy explain --method POST https://api.stripe.com/v1/payouts`,
	})
	c.AddCommand(newPolicyCheckCmd(), newPolicyExplainCmd(), newPolicyTestCmd(), newPolicyTrustCmd(), newPolicySchemaCmd())
	return c
}

func newPolicyCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Compile a policy file and print its rules in order",
		Long: `Reads FILE, else the policy that postern run would use here, and prints each profile: the rules in the order in which they
are tried, the credentials they use, and every relaxation by name. All errors are printed with line, column and a hint.
It grants nothing, so FILE need not be trusted.`,
		Example: `  postern policy check
  postern policy check examples/agent/postern.yaml`,
		Annotations: ends("0    the file is valid\n1    it is not, or could not be read\n2    the command line was wrong"),
		Args:        takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := loadPolicy(strings.Join(args, ""))
			if err != nil {
				return err
			}
			return printPolicy(c.OutOrStdout(), f)
		},
	}
}

// loadPolicy reads a policy in order to show it. That grants nothing, so it need not be trusted.
func loadPolicy(path string) (*config.File, error) {
	if path == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		if path, err = config.Find(dir); err != nil {
			return nil, err
		}
	}
	return config.Load(path)
}

func printPolicy(out io.Writer, f *config.File) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "%s is valid\n", visible(f.Path))
	if err := config.CheckTrust(f.Path); errors.Is(err, config.ErrNotTrusted) {
		fmt.Fprintln(w, "not trusted yet: postern run will not use it until `postern policy trust`, or with --config")
	}
	for _, name := range f.Profiles() {
		p, err := f.Profile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nprofile %s\n", name)
		if len(p.Rules) == 0 {
			fmt.Fprintln(w, "  no rule: everything is refused")
		}
		for _, r := range p.Rules {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", r.Effect, visible(r.Name), ruleText(r))
		}
		for _, r := range p.Relaxations {
			fmt.Fprintf(w, "  relaxation: %s\n", visible(r.String()))
		}
		for _, n := range p.Warnings {
			fmt.Fprintf(w, "  warning: %s\n", visible(n))
		}
	}
	return w.Flush()
}

// ruleText is a rule in one line, with what is not a default.
func ruleText(r policy.Rule) string {
	var b strings.Builder
	switch {
	case !r.Repo.IsZero() && r.Push:
		b.WriteString("git fetch and push " + r.Repo.String())
	case !r.Repo.IsZero():
		b.WriteString("git fetch " + r.Repo.String())
	default:
		b.WriteString(methodsText(r.Methods) + " " + r.Scheme.String() + "://" + r.Host.String())
		if r.Port != r.Scheme.DefaultPort() {
			b.WriteString(":" + r.Port.String())
		}
		for i, p := range r.Paths {
			b.WriteString(map[bool]string{true: " ", false: ", "}[i == 0] + p.String())
		}
	}
	if in := injectionText(r.Inject); in != "" {
		b.WriteString("  (" + in + ")")
	}
	return visible(b.String())
}

func methodsText(s gate.MethodSet) string {
	if s == gate.AllMethods {
		return "any method"
	}
	var names []string
	for m := gate.GET; m <= gate.OPTIONS; m++ {
		if s.Has(m) {
			names = append(names, m.String())
		}
	}
	return strings.Join(names, ",")
}

func injectionText(in policy.Injection) string {
	var places []string
	for _, s := range in.Slots {
		switch s.Kind {
		case policy.HeaderSlot:
			places = append(places, s.Name+": "+s.Prefix+"…"+s.Suffix)
		case policy.BasicSlot:
			places = append(places, "basic authentication as "+s.User)
		case policy.QuerySlot:
			places = append(places, "?"+s.Name+"=")
		}
	}
	switch in.Mode {
	case policy.InjectSet:
		return "credential " + in.Credential.String() + " on every request, in " + strings.Join(places, " or ")
	case policy.InjectSwap:
		return "credential " + in.Credential.String() + " for its placeholder, in " + strings.Join(places, " or ")
	}
	return ""
}

func newPolicyTrustCmd() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "trust [FILE]",
		Short: "Approve a policy file that lies in a working tree",
		Long: `A policy file names credentials of this host and commands that run on it, so postern run does not use one that came with a
repository until you approved its content. This prints what FILE (or the postern.yaml found here) grants, asks, and remembers
the content's hash. A file that changes must be approved again.`,
		Example: `  postern policy trust
  postern policy trust --yes ./postern.yaml   # after reading it`,
		Annotations: ends("0    approved\n1    not approved, or the file is not valid\n2    the command line was wrong"),
		Args:        takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := loadPolicy(strings.Join(args, ""))
			if err != nil {
				return err
			}
			if err := printGrants(c.OutOrStdout(), f); err != nil {
				return err
			}
			if !yes {
				ok, err := confirm(c, "Trust this file?")
				if err != nil {
					return err
				}
				if !ok {
					return &exitError{1, errors.New("not trusted")}
				}
			}
			t, err := config.DefaultTrust()
			if err != nil {
				return err
			}
			return t.Add(f)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "approve without asking")
	return c
}

// printGrants says what a policy file takes from the host.
func printGrants(out io.Writer, f *config.File) error {
	if err := printPolicy(out, f); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, name := range f.Profiles() {
		p, err := f.Profile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nof this host, profile %s uses\n", name)
		for _, c := range sortedCredentials(p) {
			from := "the file " + strconv.Quote(c.Source.File)
			if len(c.Source.Command) > 0 {
				from = fmt.Sprintf("the output of the command %q", c.Source.Command)
			}
			fmt.Fprintf(w, "  credential %s\t%s\n", c.Name, from)
		}
		for _, m := range p.Mounts {
			fmt.Fprintf(w, "  mount %s\t%s\n", strconv.Quote(m.Path), map[bool]string{true: "writable", false: "read-only"}[m.Write])
		}
		if p.Mounts == nil {
			fmt.Fprintln(w, "  mount the working directory\twritable")
		}
		if p.Proxy != nil {
			fmt.Fprintf(w, "  proxy\t%s\n", visible(p.Proxy.Host))
		}
		if p.Audit.Dir != "" {
			fmt.Fprintf(w, "  audit log in\t%s\n", strconv.Quote(p.Audit.Dir))
		}
	}
	for _, s := range f.Sources {
		fmt.Fprintf(w, "\nsha256 %x  %s\n", s.Sum, visible(s.Path))
	}
	return w.Flush()
}

func sortedCredentials(p *config.Compiled) []config.Credential {
	var out []config.Credential
	seen := map[gate.CredentialName]bool{}
	for _, r := range p.Rules { // in the order of first use
		if c, ok := p.Credentials[r.Inject.Credential]; ok && !seen[c.Name] {
			seen[c.Name] = true
			out = append(out, c)
		}
	}
	return out
}

func newPolicySchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of postern.yaml, for editors",
		Long: `Prints the JSON Schema that the reader of policy files is made of. An editor that knows it completes keys and marks mistakes as you
type; postern policy check finds more than a schema can say.`,
		Example: `  postern policy schema > ~/.config/postern/schema.json
  # first line of a postern.yaml, for editors with the YAML language server:
  # yaml-language-server: $schema=/home/me/.config/postern/schema.json`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(s)
			return err
		},
	}
}

// confirm asks a question whose answer is no unless somebody types yes. Without a terminal nobody can.
func confirm(c *cobra.Command, question string) (bool, error) {
	if f, ok := c.InOrStdin().(*os.File); ok && !term.IsTerminal(int(f.Fd())) {
		return false, errors.New("nobody to ask: standard input is no terminal\n  hint: read what is printed above, then add --yes")
	}
	fmt.Fprint(c.OutOrStdout(), question+" [y/N] ")
	answer, err := readLine(c.InOrStdin())
	if err != nil {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// readLine reads one line of at most 256 bytes, byte by byte so that nothing behind it is taken.
func readLine(r io.Reader) (string, error) {
	var b [1]byte
	line := make([]byte, 0, 256)
	for len(line) < 256 {
		n, err := r.Read(b[:])
		if n == 1 && b[0] == '\n' || errors.Is(err, io.EOF) {
			return string(line), nil
		}
		if err != nil {
			return "", err
		}
		line = append(line, b[:n]...)
	}
	return "", errors.New("an answer of more than 256 characters")
}

// visible is text for a terminal: characters that are not shown as they are come escaped.
func visible(s string) string {
	if !strings.ContainsFunc(s, strictyaml.Unshown) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// readSmall reads a file of at most 1 MiB.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, strictyaml.MaxBytes+1)
	n, err := io.ReadFull(f, buf)
	if err == nil {
		return nil, fmt.Errorf("%s: larger than 1 MiB", path)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}
