//go:build !race

package proxy

import "testing"

// bulk is the size of a body that must not be in memory.
const bulk = 256 << 20

// What one request allocates is a budget: whoever adds to it knows why. Nine of these are the test's own.
func TestARequestStaysWithinItsAllocations(t *testing.T) {
	const most = 36
	if n := testing.AllocsPerRun(100, pipeline(t)); n > most {
		t.Errorf("%v allocations, more than %d", n, most)
	}
}
