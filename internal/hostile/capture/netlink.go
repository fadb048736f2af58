package capture

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds every wait for the kernel's answer; it answers in microseconds or has lost the message.
const netlinkTimeout = 2 * time.Second

// request is one netlink message.
//
//	0  length  uint32, host order, header included
//	4  kind    uint16
//	6  flags   uint16
//	8  seq     uint32
//	12 port id uint32, 0
//	16 body, padded to four bytes
type request struct {
	what  string // for errors: what was being done
	kind  uint16
	flags uint16
	body  []byte
}

// attr appends a netlink attribute: length and type (host order, two bytes each), data, padding to four bytes.
func attr(b []byte, kind uint16, data ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func attrText(b []byte, kind uint16, s string) []byte { return attr(b, kind, append([]byte(s), 0)...) }

// attrBE appends a 32-bit number in network order, as nftables wants them.
func attrBE(b []byte, kind uint16, n uint32) []byte {
	return attr(b, kind, binary.BigEndian.AppendUint32(nil, n)...)
}

// attrHost appends a 32-bit number in host order, as rtnetlink wants them.
func attrHost(b []byte, kind uint16, n uint32) []byte {
	return attr(b, kind, binary.NativeEndian.AppendUint32(nil, n)...)
}

func nested(b []byte, kind uint16, inner []byte) []byte {
	return attr(b, kind|unix.NLA_F_NESTED, inner...)
}

// netlinkSocket talks to one netlink family of the calling thread's network namespace.
type netlinkSocket struct {
	fd  int
	seq uint32
}

func openNetlink(family int) (*netlinkSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, err
	}
	tv := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &netlinkSocket{fd: fd}, nil
}

func (s *netlinkSocket) close() { unix.Close(s.fd) }

// do sends one request and waits for its acknowledgement.
func (s *netlinkSocket) do(r request) error {
	r.flags |= unix.NLM_F_ACK
	if err := s.send([]request{r}); err != nil {
		return fmt.Errorf("%s: %w", r.what, err)
	}
	return s.await([]request{r}, s.seq)
}

// await reads until the acknowledgement of the message with sequence number acked, or the first error. The requests are those
// that were sent last. Errors of earlier messages come before the acknowledgement of a later one.
func (s *netlinkSocket) await(reqs []request, acked uint32) error {
	first := s.seq - uint32(len(reqs)) + 1
	for {
		done := false
		err := s.receive(func(kind uint16, seq uint32, body []byte) error {
			if kind != unix.NLMSG_ERROR || len(body) < 4 || seq < first || seq > s.seq {
				return nil
			}
			if e := -int32(binary.NativeEndian.Uint32(body)); e != 0 {
				return fmt.Errorf("%s: %w", reqs[seq-first].what, unix.Errno(e))
			}
			done = done || seq == acked
			return nil
		})
		if err != nil || done {
			return err
		}
	}
}

// dump sends one dump request and calls each for every answer.
func (s *netlinkSocket) dump(r request, each func(body []byte) error) error {
	r.flags |= unix.NLM_F_DUMP
	if err := s.send([]request{r}); err != nil {
		return err
	}
	for {
		done := false
		err := s.receive(func(kind uint16, seq uint32, body []byte) error {
			switch {
			case seq != s.seq:
				return nil
			case kind == unix.NLMSG_DONE:
				done = true
				return nil
			case kind == unix.NLMSG_ERROR && len(body) >= 4:
				return fmt.Errorf("%s: %w", r.what, unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
			}
			return each(body)
		})
		if err != nil || done {
			return err
		}
	}
}

// send gives the requests consecutive sequence numbers, the last of which is then s.seq, and sends them as one datagram.
func (s *netlinkSocket) send(reqs []request) error {
	var b []byte
	for _, r := range reqs {
		s.seq++
		b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(r.body)))
		b = binary.NativeEndian.AppendUint16(b, r.kind)
		b = binary.NativeEndian.AppendUint16(b, r.flags|unix.NLM_F_REQUEST)
		b = binary.NativeEndian.AppendUint32(b, s.seq)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = append(b, r.body...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (s *netlinkSocket) receive(each func(kind uint16, seq uint32, body []byte) error) error {
	buf := make([]byte, 64<<10)
	n, from, err := unix.Recvfrom(s.fd, buf, 0)
	if err != nil {
		return err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil // not from the kernel
	}
	return eachMessage(buf[:n], each)
}

// eachMessage walks the netlink messages of one datagram. What is left over and too short to be one is ignored, as the kernel does.
func eachMessage(b []byte, each func(kind uint16, seq uint32, body []byte) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return nil
		}
		if err := each(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}
