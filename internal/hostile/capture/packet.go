package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
)

// packetConn answers each datagram from the address it was sent to, as strict resolvers demand: one socket hears every address.
type packetConn struct{ *net.UDPConn }

// peer is where a datagram came from, and which address it had asked.
type peer struct {
	from  netip.AddrPort
	asked netip.Addr
}

func (p *peer) Network() string { return "udp" }
func (p *peer) String() string  { return p.from.String() }

func newPacketConn(f *os.File) (net.PacketConn, error) {
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	udp, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a UDP socket")
	}
	return packetConn{udp}, nil
}

// ReadFrom reads one datagram. The address is for WriteTo of the same connection alone.
func (c packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	var oob [64]byte
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(b, oob[:])
		if err != nil {
			return 0, nil, err
		}
		if asked, ok := askedAddr(oob[:oobn]); ok {
			return n, &peer{from: from, asked: asked}, nil
		}
	}
}

// WriteTo sends one datagram to the peer, from the address that peer had asked.
func (c packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	p, ok := to.(*peer)
	if !ok {
		return 0, errors.New("capture: write to an address that did not come from ReadFrom")
	}
	var buf [64]byte
	n, _, err := c.WriteMsgUDPAddrPort(b, pktinfo(buf[:0], p.asked), p.from)
	return n, err
}
