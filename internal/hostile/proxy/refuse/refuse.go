// Package refuse says no in the words of the client that asked.
//
// A refusal is an HTTP answer, at once, over the connection the client made: anything else (a reset, silence, 401, 429, 5xx) makes
// clients retry for minutes, start a login, or hide the reason. Its shape is the one that the client prints to a person:
//
//	model hosts     400, the provider's own JSON error
//	git             200, an ERR pkt-line: "fatal: remote error: …"
//	gRPC            200, trailers alone: grpc-status 7, PERMISSION_DENIED
//	JSON clients    403, {"error", "reason", "event", "message", "hint"}
//	all others      403, two or three lines of text
//	SSH, git://     their own protocol's last word
//
// A refusal tells the reason, the rule and the event id. It never tells a credential, another session, or what the upstream would have
// answered. Whatever came from the sandbox is shown escaped.
package refuse

import (
	"net/http"
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
)

// Refusal is what is known about a request that is refused. The zero Refusal is an internal error.
type Refusal struct {
	Reason gate.Reason
	Detail string // one clause more than the reason says; "" when there is none
	Rule   string // the rule that decided; "" when none did
	Event  gate.EventID
	Host   string       // as asked for, in any form; "" when unknown
	Voice  policy.Voice // of the host
	Git    git.Request  // not zero: the request is git's, whatever the voice
	Status int          // HTTP status instead of the usual one; ignored unless it is a 4xx that ends a client's attempts, 502 or 504
}

// Write answers r with the refusal and returns the HTTP status it had. Nothing may have been written to w before. The caller has drained
// the body of a git push (git shows the answer to nothing less) and decides whether the connection is kept.
func Write(w http.ResponseWriter, r *http.Request, f Refusal) int {
	if f.Reason == gate.ReasonNone {
		f.Reason = gate.ReasonBug
	}
	h := w.Header()
	h.Set("X-Postern-Reason", string(f.Reason))
	if !f.Event.IsZero() {
		h.Set("X-Postern-Event", f.Event.String())
	}
	h.Set("X-Should-Retry", "false")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if f.Git.Op != git.NotGit {
		return writeGit(w, f)
	}
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return writeGRPC(w, f)
	}
	status := f.status()
	contentType, body := f.body(status, wantsJSON(r))
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may be gone; there is nobody else to tell
	}
	return status
}

// writeGRPC refuses a call with a response of trailers alone (gRPC over HTTP2, "Trailers-Only").
func writeGRPC(w http.ResponseWriter, f Refusal) int {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", "7")
	h.Set("Grpc-Message", strings.ReplaceAll(f.Line(), "%", "%25"))
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return http.StatusOK
}

// status is the HTTP status of the answer.
func (f *Refusal) status() int {
	if final(f.Status) {
		return f.Status
	}
	usual := Status(f.Reason)
	switch f.Voice {
	case policy.VoiceAnthropic, policy.VoiceOpenAI, policy.VoiceGoogle:
		if usual != http.StatusMisdirectedRequest {
			return http.StatusBadRequest // a 403 costs some agents ten seconds
		}
	}
	return usual
}

// Status is the HTTP status that a reason is refused with, except on model hosts, where it is 400.
func Status(r gate.Reason) int {
	switch r {
	case gate.ReasonAuthorityMismatch:
		return http.StatusMisdirectedRequest // an HTTP/2 client may try again on a connection of its own
	case gate.ReasonLimitHeader:
		return http.StatusRequestHeaderFieldsTooLarge
	case gate.ReasonLimitBody, gate.ReasonLimitUpload:
		return http.StatusRequestEntityTooLarge
	case gate.ReasonMalformedHost, gate.ReasonMalformedAuthority, gate.ReasonMalformedPath, gate.ReasonMalformedRequest,
		gate.ReasonMethodUnknown, gate.ReasonGitMalformed, gate.ReasonMalformedHello, gate.ReasonProtocolUnknown:
		return http.StatusBadRequest
	}
	return http.StatusForbidden
}

// final reports whether a status may be used: a 4xx that starts no login and makes clients stop, or one of the two that say an upstream
// failed, where trying again is the right thing to do.
func final(status int) bool {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// wantsJSON reports whether the client asked for JSON in any of its forms.
func wantsJSON(r *http.Request) bool {
	for _, a := range r.Header["Accept"] {
		if strings.Contains(a, "/json") || strings.Contains(a, "+json") {
			return true
		}
	}
	return false
}
