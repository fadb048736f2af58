package capture

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// expression is one or more encoded nftables expressions. Each reads or writes register 1; tproxy uses 1 and 2.
type expression [][]byte

func encode(name string, data []byte) []byte {
	return nested(attrText(nil, unix.NFTA_EXPR_NAME, name), unix.NFTA_EXPR_DATA, data)
}

// meta loads a property of the packet.
func meta(key uint32) expression {
	return expression{encode("meta", attrBE(attrBE(nil, unix.NFTA_META_KEY, key), unix.NFTA_META_DREG, unix.NFT_REG_1))}
}

// payload loads bytes of the packet.
func payload(base, offset, size uint32) expression {
	b := attrBE(nil, unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
	b = attrBE(b, unix.NFTA_PAYLOAD_BASE, base)
	b = attrBE(b, unix.NFTA_PAYLOAD_OFFSET, offset)
	return expression{encode("payload", attrBE(b, unix.NFTA_PAYLOAD_LEN, size))}
}

// compare ends the rule unless the loaded bytes stand in this relation to value.
func compare(op uint32, value ...byte) expression {
	b := attrBE(nil, unix.NFTA_CMP_SREG, unix.NFT_REG_1)
	b = attrBE(b, unix.NFTA_CMP_OP, op)
	return expression{encode("cmp", nested(b, unix.NFTA_CMP_DATA, attr(nil, unix.NFTA_DATA_VALUE, value...)))}
}

func immediate(register uint32, value []byte) []byte {
	b := attrBE(nil, unix.NFTA_IMMEDIATE_DREG, register)
	return encode("immediate", nested(b, unix.NFTA_IMMEDIATE_DATA, attr(nil, unix.NFTA_DATA_VALUE, value...)))
}

func verdict(code uint32) expression {
	v := nested(nil, unix.NFTA_DATA_VERDICT, attrBE(nil, unix.NFTA_VERDICT_CODE, code))
	b := attrBE(nil, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	return expression{encode("immediate", nested(b, unix.NFTA_IMMEDIATE_DATA, v))}
}

// tproxy gives the packet to the connection it belongs to, or else to the transparent listener at to.
func tproxy(family uint32, to netip.AddrPort) expression {
	b := attrBE(nil, tproxyFamily, family)
	b = attrBE(b, tproxyRegAddr, unix.NFT_REG_1)
	b = attrBE(b, tproxyRegPort, unix.NFT_REG_2)
	return expression{
		immediate(unix.NFT_REG_1, to.Addr().AsSlice()),
		immediate(unix.NFT_REG_2, binary.BigEndian.AppendUint16(nil, to.Port())),
		encode("tproxy", b),
	}
}

func join(parts ...expression) expression {
	var all expression
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func lo() []byte { return binary.NativeEndian.AppendUint32(nil, loIndex) }

func notLo(key uint32) expression { return join(meta(key), compare(unix.NFT_CMP_NEQ, lo()...)) }

func isProto(proto byte) expression {
	return join(meta(unix.NFT_META_L4PROTO), compare(unix.NFT_CMP_EQ, proto))
}

func isFamily(family byte) expression {
	return join(meta(unix.NFT_META_NFPROTO), compare(unix.NFT_CMP_EQ, family))
}

// toLoopback4 matches 127.0.0.0/8 by the first byte of the destination, at offset 16 of the IPv4 header.
func toLoopback4() expression {
	return join(isFamily(unix.NFPROTO_IPV4), payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 1), compare(unix.NFT_CMP_EQ, 127))
}

// toLoopback6 matches ::1, at offset 24 of the IPv6 header.
func toLoopback6() expression {
	one := netip.IPv6Loopback().As16()
	return join(isFamily(unix.NFPROTO_IPV6), payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16), compare(unix.NFT_CMP_EQ, one[:]...))
}

func icmpType() expression { return payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1) }
