// Package limit bounds what one session, and the gateway as a whole, may use: slots, rates and bytes.
// It is pure: time is an argument.
package limit

import "time"

// Limits are the bounds of one session. A zero field means its default from Defaults; nothing is ever unlimited.
type Limits struct {
	Connections int           // open connections at once
	Handshakes  Rate          // TLS handshakes
	Requests    Rate          // HTTP requests
	DNS         Rate          // DNS queries
	Leaves      Rate          // certificates minted to deliver a refusal
	Header      int           // bytes of one request head
	Body        int64         // bytes of one request body
	Upload      int64         // request body bytes of the whole session
	Streams     int           // concurrent HTTP/2 streams of one connection
	HelloTime   time.Duration // until a ClientHello or request line is complete
	HeaderTime  time.Duration // until a request head is complete
	Idle        time.Duration // a kept-alive connection without a request
	Progress    time.Duration // a body or a stream without a byte in either direction
	Answer      time.Duration // until the upstream's response head
	Duration    time.Duration // of the whole session
}

// Rate is a token bucket: Per tokens a second, at most Burst at once. The zero Rate is "default".
type Rate struct {
	Per   float64
	Burst int
}
