// Package gate is the vocabulary of postern: the names that decisions are made about.
//
// Every type here is made by a Parse function that accepts exactly one spelling of a thing, or refuses. Nothing downstream of a
// gate type takes a raw string, so the bytes that were judged are the bytes that are dialled, matched and written down.
// The zero value of every type names nothing and is refused by policy.
package gate

import (
	"fmt"
	"strconv"
)

// ParseError says what was wrong with an input, where, and what would have been right.
type ParseError struct {
	What   string // the kind of thing: "host", "path", …
	Reason Reason // the stable code of the refusal
	Offset int    // byte offset of the fault, -1 when it has no single place
	Detail string // one clause for a person; never contains the input
}

func (e *ParseError) Error() string {
	if e.Offset < 0 {
		return e.What + ": " + e.Detail
	}
	return e.What + ": " + e.Detail + " at byte " + strconv.Itoa(e.Offset)
}

func fault(what string, r Reason, offset int, detail string) *ParseError {
	return &ParseError{What: what, Reason: r, Offset: offset, Detail: detail}
}

// Port is a TCP port. Zero is no port.
type Port uint16

// ParsePort reads a decimal port from 1 to 65535 without sign, leading zero or service name.
func ParsePort(s string) (Port, error) {
	if s == "" || len(s) > 5 || s[0] == '0' {
		return 0, fault("port", ReasonMalformedAuthority, -1, "not a number from 1 to 65535")
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, fault("port", ReasonMalformedAuthority, i, "not a number from 1 to 65535")
		}
		n = n*10 + int(s[i]-'0')
	}
	if n > 65535 {
		return 0, fault("port", ReasonMalformedAuthority, -1, "not a number from 1 to 65535")
	}
	return Port(n), nil
}

func (p Port) String() string { return strconv.Itoa(int(p)) }

// Scheme is how a request travels to its upstream. The zero Scheme is none and is refused.
type Scheme uint8

const (
	NoScheme Scheme = iota
	HTTPS           // verified TLS
	HTTP            // cleartext; never carries a credential
)

func (s Scheme) String() string {
	switch s {
	case HTTPS:
		return "https"
	case HTTP:
		return "http"
	}
	return "none"
}

// DefaultPort is the scheme's port when an authority names none.
func (s Scheme) DefaultPort() Port {
	switch s {
	case HTTPS:
		return 443
	case HTTP:
		return 80
	}
	return 0
}

// Authority is a host and a port.
type Authority struct {
	Host Host
	Port Port
}

// ParseAuthority reads "host" or "host:port" (RFC 9110 §7.2). A missing port becomes def.
// Userinfo, brackets and IP literals are refused.
func ParseAuthority(s string, def Port) (Authority, error) {
	host, port := s, def
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] != ':' {
			continue
		}
		p, err := ParsePort(s[i+1:])
		if err != nil {
			return Authority{}, err
		}
		host, port = s[:i], p
		break
	}
	h, err := ParseHost(host)
	if err != nil {
		return Authority{}, err
	}
	return Authority{h, port}, nil
}

func (a Authority) String() string { return a.Host.String() + ":" + a.Port.String() }

// Method is an HTTP method from a closed list. The zero Method is none and is refused.
type Method uint8

const (
	NoMethod Method = iota
	GET
	HEAD
	POST
	PUT
	PATCH
	DELETE
	OPTIONS
	numMethods
)

var methodNames = [numMethods]string{"", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// ParseMethod reads a method exactly as RFC 9110 spells it. CONNECT and TRACE are not requests that can be forwarded.
func ParseMethod(s string) (Method, error) {
	for m := GET; m < numMethods; m++ {
		if methodNames[m] == s {
			return m, nil
		}
	}
	return NoMethod, fault("method", ReasonMethodUnknown, -1, "not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
}

func (m Method) String() string {
	if m < numMethods {
		return methodNames[m]
	}
	return fmt.Sprintf("method(%d)", uint8(m))
}

// MethodSet is a set of methods; the zero MethodSet is empty and matches nothing.
type MethodSet uint16

// AllMethods holds every method that ParseMethod knows.
const AllMethods MethodSet = 1<<numMethods - 2

// Methods makes a set.
func Methods(ms ...Method) MethodSet {
	var s MethodSet
	for _, m := range ms {
		s |= 1 << m
	}
	return s &^ 1
}

// Has reports whether m is in the set. NoMethod never is.
func (s MethodSet) Has(m Method) bool { return m > NoMethod && m < numMethods && s&(1<<m) != 0 }

// Failure is why something that was allowed could not be done, in words that may be shown to the sandbox.
type Failure struct {
	Reason Reason
	Detail string // for the person; holds no credential and no address of the host's network
	Err    error  // for the host's own log; may be nil
}

func (f *Failure) Error() string { return string(f.Reason) + ": " + f.Detail }
func (f *Failure) Unwrap() error { return f.Err }
