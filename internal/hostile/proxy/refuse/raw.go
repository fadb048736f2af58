package refuse

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// HTTP refuses a connection on which no request was parsed, with a whole HTTP/1.1 answer. The caller sets the write deadline and closes.
func HTTP(w io.Writer, f Refusal) error {
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

// SSH refuses an SSH connection in its own protocol, by the deadline: an identification string and a disconnect message, which the client
// prints. What the client sends is read and dropped, since closing on unread input would lose the message. The caller closes.
func SSH(c net.Conn, f Refusal, deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
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
