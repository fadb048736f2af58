// Package archtest holds the architecture as tests: which package may import which, who may dial, what may be mutable, how large
// the trusted core may grow, and that every threat and invariant written down names a test that exists.
//
// It reads the source with go/parser and go/types and needs neither the network nor a build. Each rule fails with its reason.
package archtest
