//go:build !race

package proxy

// bulk is the size of a body that must not be in memory.
const bulk = 256 << 20
