package gate

// Reason is the stable code of a decision. Codes are part of the audit schema: they are added, never renamed.
type Reason string

// The reasons. Each has a line in Reasons, from which the reference page is generated.
const (
	ReasonNone Reason = ""

	ReasonAllowed Reason = "allowed"

	ReasonHostNotListed    Reason = "host.not_listed"
	ReasonPortNotListed    Reason = "port.not_listed"
	ReasonMethodNotListed  Reason = "method.not_listed"
	ReasonPathNotListed    Reason = "path.not_listed"
	ReasonRuleDenies       Reason = "rule.denies"
	ReasonSchemeNotListed  Reason = "scheme.not_listed"
	ReasonUpgradeNotListed Reason = "upgrade.not_listed"
	ReasonEncodedSlash     Reason = "path.encoded_slash"
	ReasonRepoNotListed    Reason = "repo.not_listed"
	ReasonPushNotListed    Reason = "push.not_listed"
	ReasonGitMalformed     Reason = "git.malformed"

	ReasonMalformedHost      Reason = "host.malformed"
	ReasonHostIsAddress      Reason = "host.is_address"
	ReasonMalformedAuthority Reason = "authority.malformed"
	ReasonAuthorityMismatch  Reason = "authority.mismatch"
	ReasonMalformedPath      Reason = "path.malformed"
	ReasonMethodUnknown      Reason = "method.unknown"
	ReasonMalformedRequest   Reason = "request.malformed"
	ReasonNoServerName       Reason = "tls.no_server_name"
	ReasonEncryptedHello     Reason = "tls.encrypted_hello"
	ReasonMalformedHello     Reason = "tls.malformed_hello"
	ReasonHandshakeFailed    Reason = "tls.handshake_failed"
	ReasonProtocolUnknown    Reason = "protocol.unknown"
	ReasonSSH                Reason = "protocol.ssh"
	ReasonGitProtocol        Reason = "protocol.git"
	ReasonDirectToListener   Reason = "capture.direct"
	ReasonOriginUnknown      Reason = "capture.no_origin"

	ReasonForeignCredential Reason = "credential.foreign"
	ReasonPlaceholderLeak   Reason = "credential.placeholder_misplaced"
	ReasonCredentialSource  Reason = "credential.unavailable"
	ReasonCredentialClear   Reason = "credential.cleartext"
	ReasonCredentialRefused Reason = "credential.refused_upstream"

	ReasonSessionEnded Reason = "session.ended"
	ReasonIdentity     Reason = "session.identity"

	ReasonLimitConnections Reason = "limit.connections"
	ReasonLimitHandshakes  Reason = "limit.handshakes"
	ReasonLimitRequests    Reason = "limit.requests"
	ReasonLimitHeader      Reason = "limit.header"
	ReasonLimitBody        Reason = "limit.body"
	ReasonLimitUpload      Reason = "limit.upload"
	ReasonLimitLeaves      Reason = "limit.leaves"
	ReasonLimitTime        Reason = "limit.time"
	ReasonLimitDNS         Reason = "limit.dns"

	ReasonResolve         Reason = "upstream.resolve"
	ReasonAddressGuard    Reason = "upstream.address_refused"
	ReasonDial            Reason = "upstream.unreachable"
	ReasonUpstreamTLS     Reason = "upstream.certificate"
	ReasonUpstreamTimeout Reason = "upstream.timeout"
	ReasonUpstream        Reason = "upstream.failed"
	ReasonOpaqueEncoding  Reason = "upstream.opaque_encoding"

	ReasonAudit  Reason = "audit.unavailable"
	ReasonConfig Reason = "config.invalid"
	ReasonBug    Reason = "internal.error"
)

// ReasonInfo explains a reason to a person.
type ReasonInfo struct {
	Code    Reason
	Meaning string // one sentence, what happened
	Remedy  string // what the person can do, "" when nothing
}

// Reasons lists every reason, in the order of the reference page.
func Reasons() []ReasonInfo {
	return []ReasonInfo{
		{ReasonAllowed, "a rule allows it", ""},
		{ReasonHostNotListed, "no rule allows this host", "add the host under `allow:` in postern.yaml, or a preset under `use:`"},
		{ReasonPortNotListed, "the host is allowed, but not on this port", "add `port:` to a rule for this host"},
		{ReasonMethodNotListed, "the host is allowed, but not with this method", "add the method to the rule's `methods:`"},
		{ReasonPathNotListed, "the host is allowed, but not this path", "add the path to the rule's `paths:`"},
		{ReasonRuleDenies, "a deny rule matches; deny wins over every allow", "narrow or remove the rule under `deny:`"},
		{ReasonSchemeNotListed, "the host is allowed over https only", "use https, or add a rule with `scheme: http` (it never carries a credential)"},
		{ReasonUpgradeNotListed, "the rule does not allow a WebSocket or another protocol upgrade", "add `websocket: true` to the rule"},
		{ReasonEncodedSlash, "the path holds an encoded slash, which servers read in different ways", "add `encoded_slash: true` to the rule if the service needs it"},
		{ReasonRepoNotListed, "this session may not use this repository", "add it under `git:` in postern.yaml"},
		{ReasonPushNotListed, "this session may fetch from this repository but not push to it", "set `push: true` for the repository in postern.yaml"},
		{ReasonGitMalformed, "not a request that git clients make", ""},
		{ReasonMalformedHost, "the host name is not a canonical DNS name", "use the plain lower-case name without a trailing dot"},
		{ReasonHostIsAddress, "an IP address was used where a host name is needed", "use the host's name: an address cannot be allowed"},
		{ReasonMalformedAuthority, "the authority is not host or host:port", ""},
		{ReasonAuthorityMismatch, "the names in this request disagree: address asked by DNS, CONNECT, SNI and Host must be one name", "send the request on a connection of its own host"},
		{ReasonMalformedPath, "the path is not in canonical form; it is refused rather than rewritten", "send the path without dot segments, doubled slashes, backslashes or double encoding"},
		{ReasonMethodUnknown, "the method is not one that can be forwarded", ""},
		{ReasonMalformedRequest, "the request breaks HTTP's grammar in a way that servers read differently", ""},
		{ReasonNoServerName, "the TLS client named no server (SNI)", "use a client that sends SNI, and a name rather than an address"},
		{ReasonEncryptedHello, "the TLS client encrypts the server's name (ECH)", "turn off Encrypted Client Hello in the client"},
		{ReasonMalformedHello, "the bytes begin like TLS but are no ClientHello", ""},
		{ReasonHandshakeFailed, "the TLS handshake with the client failed", "the client may not trust the session CA: see `postern doctor`"},
		{ReasonProtocolUnknown, "neither TLS nor HTTP", "only https and http leave the sandbox"},
		{ReasonSSH, "SSH does not leave the sandbox", "use the repository's https:// address"},
		{ReasonGitProtocol, "git:// does not leave the sandbox", "use the repository's https:// address"},
		{ReasonDirectToListener, "a connection straight to the gateway's own listener", ""},
		{ReasonOriginUnknown, "the kernel did not say where the connection was going", ""},
		{ReasonForeignCredential, "the request carries a credential that is not this session's", "remove the key from the client's configuration; postern supplies the real one"},
		{ReasonPlaceholderLeak, "a placeholder of this session stands where no credential belongs", ""},
		{ReasonCredentialSource, "the credential could not be read on the host", "see `postern log` on the host for the credential's name and remedy"},
		{ReasonCredentialClear, "a credential never travels over cleartext", "use https"},
		{ReasonCredentialRefused, "the service refused the credential that postern supplied", "renew the credential on the host"},
		{ReasonSessionEnded, "the session has ended", ""},
		{ReasonIdentity, "the sandbox behind this listener is not the one that was bound", ""},
		{ReasonLimitConnections, "too many connections at once", "raise `limits.connections`"},
		{ReasonLimitHandshakes, "too many new connections per second", "raise `limits.handshakes`"},
		{ReasonLimitRequests, "too many requests per minute", "raise `limits.requests`"},
		{ReasonLimitHeader, "the request's header is too large", "raise `limits.header`"},
		{ReasonLimitBody, "the request's body is larger than the rule allows", "raise the rule's `max_body`"},
		{ReasonLimitUpload, "the session has uploaded as much as it may", "raise `limits.upload`"},
		{ReasonLimitLeaves, "too many different host names per second", "raise `limits.leaves`"},
		{ReasonLimitTime, "no progress within the time allowed", ""},
		{ReasonLimitDNS, "too many DNS queries per second", "raise `limits.dns`"},
		{ReasonResolve, "the host's name could not be resolved on the host", "check the name and the host's resolver"},
		{ReasonAddressGuard, "the name resolves to an address that is not public", "a private endpoint needs an entry under `upstreams:`"},
		{ReasonDial, "the upstream could not be reached", ""},
		{ReasonUpstreamTLS, "the upstream's certificate does not verify for this host", "a private root needs `ca:` under `upstreams:`"},
		{ReasonUpstreamTimeout, "the upstream did not answer in time", ""},
		{ReasonUpstream, "the upstream broke off", ""},
		{ReasonOpaqueEncoding, "the upstream answered in an encoding that cannot be searched for credentials", ""},
		{ReasonAudit, "the audit record could not be written, so nothing may happen", "free disk space or mend the audit directory"},
		{ReasonConfig, "the configuration is not valid", "run `postern policy check`"},
		{ReasonBug, "an internal error; the request was refused", "please report it"},
	}
}

// Info finds the explanation of a code; unknown codes explain themselves by their code.
func (r Reason) Info() ReasonInfo {
	for _, i := range Reasons() {
		if i.Code == r {
			return i
		}
	}
	return ReasonInfo{Code: r, Meaning: string(r)}
}
