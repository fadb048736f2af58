package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
	"postern/internal/operator/config"
	"postern/internal/operator/strictyaml"
)

// question is one request that somebody asks about.
type question struct {
	file, profile string
	method        string
	url           string
	websocket     bool
}

func newPolicyExplainCmd() *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:   "explain URL",
		Short: "Say what would happen to a request, by which rule, and what line would allow it",
		Long: `Asks the policy about one request, exactly as the gateway would: prints the verdict and its reason, the rule that decided with its
line, where a credential would go, and for a refusal the line that would allow it. Nothing is sent, and no credential is read.`,
		Example: `  postern policy explain --method POST https://api.stripe.com/v1/payouts
  postern policy explain 'https://github.com/acme/widgets/info/refs?service=git-receive-pack'`,
		Annotations: ends("0    the policy decided, whatever its verdict\n1    the policy or the URL could not be read\n2    the command line was wrong"),
		Args:        takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			q.url = args[0]
			f, err := loadPolicy(q.file)
			if err != nil {
				return err
			}
			p, err := f.Profile(q.profile)
			if err != nil {
				return err
			}
			return explainRequest(c.OutOrStdout(), f, p, q)
		},
	}
	f := c.Flags()
	f.StringVar(&q.file, "config", "", "policy `FILE` (default: the one that postern run would use here)")
	profileFlag(c, &q.profile)
	f.StringVarP(&q.method, "method", "X", "GET", "HTTP `METHOD`")
	f.BoolVar(&q.websocket, "websocket", false, "ask for an upgrade to WebSocket")
	return c
}

func explainRequest(out io.Writer, f *config.File, p *config.Compiled, q question) error {
	a, d, err := decide(p.Policy, q)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s  %s %s\n", d.Verdict, visible(q.method), visible(q.url))
	fmt.Fprintf(out, "  reason: %s: %s\n", d.Reason, d.Reason.Info().Meaning)
	if d.Rule != "" {
		fmt.Fprintf(out, "  rule: %s\n", visible(d.Rule))
	}
	if d.Verdict == policy.Allow {
		switch in := d.Permit.Injection(); {
		case in.Mode != policy.InjectNone:
			fmt.Fprintf(out, "  %s\n", visible(injectionText(in)))
		case d.Mode == policy.Tunnel:
			fmt.Fprintln(out, "  passed through unread (tls: tunnel)")
		default:
			fmt.Fprintln(out, "  no credential")
		}
		return nil
	}
	section, line := config.Suggest(a, d)
	if line == "" {
		if remedy := d.Reason.Info().Remedy; remedy != "" {
			fmt.Fprintf(out, "  remedy: %s\n", remedy)
		}
		return nil
	}
	fmt.Fprintf(out, "  to allow it, add to the profile %s in %s:\n    %s:\n      %s\n", p.Name, visible(filepath.Base(f.Path)), section, line)
	return nil
}

// decide asks the policy as the gateway would: first for the connection, then for the request on it.
func decide(p *policy.Policy, q question) (policy.Action, policy.Decision, error) {
	a, err := parseAction(q)
	var pe *gate.ParseError
	if errors.As(err, &pe) {
		return a, policy.Decision{Reason: pe.Reason}, nil
	}
	if err != nil {
		return a, policy.Decision{}, err
	}
	s := policy.Subject{Session: gate.NewSessionID([10]byte{1})} // any session: rules do not tell them apart
	if a.Scheme == gate.HTTPS {
		connect := policy.Action{Kind: policy.Connect, Scheme: a.Scheme, Host: a.Host, Port: a.Port}
		if d := p.Decide(s, connect); d.Verdict == policy.Deny && d.Reason == gate.ReasonRuleDenies || d.Mode == policy.Tunnel {
			return a, d, nil
		}
	}
	return a, p.Decide(s, a), nil
}

// parseAction reads a method and a URL without normalising either: what a gateway refuses is refused here.
func parseAction(q question) (policy.Action, error) {
	scheme, rest, ok := strings.Cut(q.url, "://")
	a := policy.Action{Kind: policy.Request, Upgrade: q.websocket}
	switch {
	case ok && scheme == "https":
		a.Scheme = gate.HTTPS
	case ok && scheme == "http":
		a.Scheme = gate.HTTP
	default:
		return a, errors.New("not an https:// or http:// URL")
	}
	authority, target := rest, "/"
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, target = rest[:i], rest[i:]
		if target[0] == '?' {
			target = "/" + target
		}
	}
	to, err := gate.ParseAuthority(authority, a.Scheme.DefaultPort())
	if err != nil {
		return a, err
	}
	a.Host, a.Port = to.Host, to.Port
	if a.Method, err = gate.ParseMethod(q.method); err != nil {
		return a, err
	}
	if a.Path, err = gate.ParsePath(target); err != nil {
		return a, err
	}
	a.Git = git.Classify(a.Host, a.Method, a.Path)
	return a, nil
}

// expectation is one line of a table of requests.
type expectation struct {
	strictyaml.At `json:"-"`

	Method     string `json:"method,omitempty"`
	URL        string `json:"url"`
	Want       string `json:"want"`
	Rule       string `json:"rule,omitempty"`
	Credential string `json:"credential,omitempty"`
	WebSocket  bool   `json:"websocket,omitempty"`
}

func newPolicyTestCmd() *cobra.Command {
	var file, profile string
	c := &cobra.Command{
		Use:   "test TABLE",
		Short: "Run a table of requests against a policy",
		Long: `TABLE is a YAML list of requests and wanted verdicts:

  - {method: POST, url: "https://api.anthropic.com/v1/messages", want: allow, credential: claude}
  - {url: "https://api.anthropic.com/v1/files", want: deny}
  - {url: "https://docs.example.com/a", want: allow, rule: "postern.yaml:17", credential: none}

method is GET when absent. rule is a rule's name as postern policy check prints it. Keep such a table beside a policy, and run it
where the policy is reviewed.`,
		Example: `  postern policy test requests.yaml
  postern policy test --config examples/agent/postern.yaml examples/agent/requests.yaml`,
		Annotations: ends("0    every verdict is the wanted one\n1    one differs, or a file could not be read\n2    the command line was wrong"),
		Args:        takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := loadPolicy(file)
			if err != nil {
				return err
			}
			p, err := f.Profile(profile)
			if err != nil {
				return err
			}
			src, err := readSmall(args[0])
			if err != nil {
				return err
			}
			var table []expectation
			if err := strictyaml.Decode(args[0], src, &table); err != nil {
				return err
			}
			return runTable(c.OutOrStdout(), args[0], p, table)
		},
	}
	c.Flags().StringVar(&file, "config", "", "policy `FILE` (default: the one that postern run would use here)")
	profileFlag(c, &profile)
	return c
}

func runTable(out io.Writer, name string, p *config.Compiled, table []expectation) error {
	failed := 0
	for _, e := range table {
		wrong, err := e.differs(p.Policy)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, e.Pos().Line, err)
		}
		if wrong != "" {
			failed++
			fmt.Fprintf(out, "%s:%d: %s %s: %s\n", visible(name), e.Pos().Line, visible(e.method()), visible(e.URL), visible(wrong))
		}
	}
	fmt.Fprintf(out, "%d of %d as wanted\n", len(table)-failed, len(table))
	if failed > 0 || len(table) == 0 {
		return &exitError{code: 1}
	}
	return nil
}

func (e *expectation) method() string {
	if e.Method == "" {
		return gate.GET.String()
	}
	return e.Method
}

// differs says how the policy's answer differs from what is wanted, "" when it does not.
func (e *expectation) differs(p *policy.Policy) (string, error) {
	if e.Want != policy.Allow.String() && e.Want != policy.Deny.String() {
		return "", errors.New("want is allow or deny")
	}
	_, d, err := decide(p, question{method: e.method(), url: e.URL, websocket: e.WebSocket})
	if err != nil {
		return "", err
	}
	credential := d.Permit.Injection().Credential.String()
	if credential == "" {
		credential = "none"
	}
	switch {
	case d.Verdict.String() != e.Want:
		return fmt.Sprintf("%s (%s, rule %q), wanted %s", d.Verdict, d.Reason, d.Rule, e.Want), nil
	case e.Rule != "" && d.Rule != e.Rule:
		return fmt.Sprintf("rule %q, wanted %q", d.Rule, e.Rule), nil
	case e.Credential != "" && credential != e.Credential:
		return fmt.Sprintf("credential %s, wanted %s", credential, e.Credential), nil
	}
	return "", nil
}
