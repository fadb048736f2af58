package refuse

import (
	"net/http"
	"strconv"

	"postern/internal/core/git"
)

// writeGit answers as a git server does when it has one thing to say (gitprotocol-http, gitprotocol-pack). Status 200 and the
// exact content type matter: with any other git hides the text, and 401 makes it ask for a password.
func writeGit(w http.ResponseWriter, f Refusal) int {
	contentType, body := "application/x-git-upload-pack-result", errLine(f.Text())
	switch f.Git.Op {
	case git.DiscoverFetch:
		contentType = "application/x-git-upload-pack-advertisement"
	case git.DiscoverPush:
		contentType = "application/x-git-receive-pack-advertisement"
	case git.Push:
		contentType, body = "application/x-git-receive-pack-result", pushReport(f)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client may be gone; there is nobody else to tell
	return http.StatusOK
}

func errLine(text string) []byte { return pktLine(nil, "ERR "+text) }

// pushReport is a report-status for a push that was never unpacked, in the side bands that every client of this
// century asks for: band 2 is shown to the person, band 1 carries the report.
func pushReport(f Refusal) []byte {
	report := append(pktLine(nil, "unpack "+f.Line()+"\n"), "0000"...)
	b := pktLine(nil, "\x02"+f.Text())
	b = pktLine(b, "\x01"+string(report))
	return append(b, "0000"...)
}

// pktLine appends one line of up to 65,516 bytes; a refusal has at most a few thousand.
func pktLine(b []byte, payload string) []byte {
	const hex = "0123456789abcdef"
	n := len(payload) + 4
	b = append(b, hex[n>>12&15], hex[n>>8&15], hex[n>>4&15], hex[n&15])
	return append(b, payload...)
}
