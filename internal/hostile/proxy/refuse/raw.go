package refuse

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"

	"postern/internal/core/gate"
)

// Raw refuses a connection on which no request was parsed, in the protocol that the reason names: SSH, git://, else HTTP/1.1.
// It may read what the client still says, so that closing does not reset the connection and lose the refusal. The caller sets the
// deadline of c before and closes it after; an error says that the client may not have got the refusal.
func Raw(c net.Conn, f Refusal) error {
	if f.Reason == gate.ReasonNone {
		f.Reason = gate.ReasonBug
	}
	switch f.Reason {
	case gate.ReasonSSH:
		return writeSSH(c, f)
	case gate.ReasonGitProtocol:
		_, err := c.Write(errLine(f.Text()))
		return err
	}
	return writeHTTP(c, f)
}

// writeHTTP writes a whole HTTP/1.1 answer.
func writeHTTP(w io.Writer, f Refusal) error {
	status := f.status()
	contentType, body := f.body(status, false)
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nX-Postern-Reason: %s\r\nX-Postern-Event: %s\r\n"+
		"X-Should-Retry: false\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), contentType, len(body), escape(string(f.Reason), maxText), f.Event, body)
	return err
}

// Numbers of RFC 4253 and the most that is read of what the client says meanwhile.
const (
	sshMsgDisconnect     = 1
	sshByApplication     = 11
	sshBlock             = 8
	sshMaxClient         = 64 << 10
	sshDescriptionLength = 400 // OpenSSH prints no more
)

// writeSSH sends an identification string and a disconnect message, which the client prints, and reads until the client hangs up.
func writeSSH(c net.Conn, f Refusal) error {
	packet, err := sshDisconnect(f.Line())
	if err != nil {
		return err
	}
	if _, err := c.Write(append([]byte("SSH-2.0-postern\r\n"), packet...)); err != nil {
		return err
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return err
		}
	}
	_, err = io.CopyN(io.Discard, c, sshMaxClient)
	if err == io.EOF {
		return nil
	}
	return err
}

// sshDisconnect is an unencrypted binary packet (RFC 4253 §6) with SSH_MSG_DISCONNECT (§11.1).
func sshDisconnect(text string) ([]byte, error) {
	if len(text) > sshDescriptionLength {
		text = text[:sshDescriptionLength]
	}
	payload := []byte{sshMsgDisconnect, 0, 0, 0, sshByApplication}
	payload = append(binary.BigEndian.AppendUint32(payload, uint32(len(text))), text...)
	payload = binary.BigEndian.AppendUint32(payload, 0) // language tag
	padding := sshBlock - (5+len(payload))%sshBlock
	if padding < 4 {
		padding += sshBlock
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	b = append(append(b, byte(padding)), payload...)
	pad := make([]byte, padding)
	if _, err := rand.Read(pad); err != nil {
		return nil, err
	}
	return append(b, pad...), nil
}
