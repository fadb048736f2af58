package e2e

import (
	"os"
	"testing"

	"postern/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
