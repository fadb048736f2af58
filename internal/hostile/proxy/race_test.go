//go:build race

package proxy

// bulk is the size of a body that must not be in memory. The race detector makes every byte ten times as dear.
const bulk = 64 << 20
