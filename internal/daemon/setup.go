package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"

	"postern/internal/core/gate"
	"postern/internal/hostile/capture"
	"postern/internal/sandbox/inspect"
	"postern/internal/sandbox/native"
)

// setup is what the gateway tells the inside of the sandbox about its sockets.
type setup struct {
	Ports []gate.Port `json:"ports"`
}

func setupRequest(ports []gate.Port) []byte {
	b, _ := json.Marshal(setup{Ports: ports}) // numbers always encode
	return b
}

// Init is the first thing that main does. In a process that was started to become a sandbox, or to look at one from inside, it never
// returns.
func Init(args []string) {
	if len(args) == 0 {
		return
	}
	if filepath.Base(args[0]) == inspect.Name {
		os.Exit(inspect.Main(args, os.Stdin, os.Stdout))
	}
	if args[0] != native.InitName {
		return
	}
	native.Init(func(request []byte) ([]*os.File, error) {
		var s setup
		if err := json.Unmarshal(request, &s); err != nil {
			return nil, err
		}
		return capture.Setup(capture.Config{Ports: s.Ports[:min(len(s.Ports), capture.MaxPorts)]})
	})
}
