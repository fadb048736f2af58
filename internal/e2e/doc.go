// Package e2e runs the postern program as a person would, against the small internet of package testkit: real clients in real
// namespaces, as root where the tests are run by root, and always as an ordinary user too.
//
// What a client says is never the verdict of a security test: the sinks are, and the audit log.
package e2e
