package daemon

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary plays every part: the sandbox's first process, the inspector inside, a postern doctor, and the tests.
func TestMain(m *testing.M) {
	Init(os.Args)
	if len(os.Args) > 1 && os.Args[1] == doctorRole {
		os.Exit(actDoctor(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
