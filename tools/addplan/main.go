// Command addplan prints a benchmark plan with one contestant added: addplan PLAN CONTESTANT. One of the same name is replaced.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "addplan:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: addplan PLAN CONTESTANT")
	}
	var plan, row map[string]any
	for i, into := range []*map[string]any{&plan, &row} {
		b, err := os.ReadFile(args[i])
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, into); err != nil {
			return fmt.Errorf("%s: %w", args[i], err)
		}
	}
	old, ok := plan["contestants"].([]any)
	if !ok {
		return fmt.Errorf("%s lists no contestants", args[0])
	}
	var all []any
	for _, c := range old {
		if m, ok := c.(map[string]any); !ok || m["name"] != row["name"] {
			all = append(all, c)
		}
	}
	plan["contestants"] = append(all, row)
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(plan)
}
