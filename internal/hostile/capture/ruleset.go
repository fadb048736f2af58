package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const tableName = "postern"

// Constants of linux/netfilter.h and nf_tables.h that x/sys does not name.
const (
	tproxyFamily  = 1 // NFTA_TPROXY_FAMILY
	tproxyRegAddr = 2
	tproxyRegPort = 3
	verdictDrop   = 0
	verdictAccept = 1

	priorityFilter = 0
	priorityMangle = -150
)

// rules is the whole ruleset, in the order in which the kernel reads it. listen4 and listen6 are the transparent TCP
// listeners; an invalid listen6 leaves IPv6 out.
//
// In nft's own language:
//
//	table inet postern {
//		chain capture { type filter hook prerouting priority mangle; policy accept;
//			iif != lo drop
//			meta l4proto != tcp accept
//			tcp dport 53 accept                     # the DNS listener has port 53 of every address
//			ip daddr 127.0.0.0/8 accept             # the sandbox's own servers
//			ip6 daddr ::1 accept
//			meta nfproto ipv4 tproxy ip to LISTEN4
//			meta nfproto ipv6 tproxy ip6 to LISTEN6
//		}
//		chain input { type filter hook input priority filter; policy drop;
//			iif != lo drop
//			meta l4proto { tcp, udp } accept        # without a socket the stack refuses at once
//			icmp type { 3, 11, 12 } accept          # errors; echo to a made-up address would mislead
//			icmpv6 type < 128 accept
//			ip protocol icmp ip daddr 127.0.0.0/8 accept
//			meta l4proto ipv6-icmp ip6 daddr ::1 accept
//		}
//		chain forward { type filter hook forward priority filter; policy drop; }
//		chain output { type filter hook output priority filter; policy drop; oif lo accept; }
//	}
//
// A TPROXY that finds no listener, because the gateway is gone, falls through to the stack, which refuses the connection.
func rules(listen4, listen6 netip.AddrPort) []request {
	r := &ruleWriter{}
	r.table()
	r.chain("capture", unix.NF_INET_PRE_ROUTING, priorityMangle, verdictAccept)
	r.rule(notLo(unix.NFT_META_IIF), verdict(verdictDrop))
	r.rule(meta(unix.NFT_META_L4PROTO), compare(unix.NFT_CMP_NEQ, unix.IPPROTO_TCP), verdict(verdictAccept))
	r.rule(payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2), compare(unix.NFT_CMP_EQ, 0, dnsPort), verdict(verdictAccept))
	r.rule(toLoopback4(), verdict(verdictAccept))
	r.rule(toLoopback6(), verdict(verdictAccept))
	r.rule(isFamily(unix.NFPROTO_IPV4), tproxy(unix.NFPROTO_IPV4, listen4))
	if listen6.IsValid() {
		r.rule(isFamily(unix.NFPROTO_IPV6), tproxy(unix.NFPROTO_IPV6, listen6))
	}

	r.chain("input", unix.NF_INET_LOCAL_IN, priorityFilter, verdictDrop)
	r.rule(notLo(unix.NFT_META_IIF), verdict(verdictDrop))
	r.rule(isProto(unix.IPPROTO_TCP), verdict(verdictAccept))
	r.rule(isProto(unix.IPPROTO_UDP), verdict(verdictAccept))
	for _, typ := range []byte{3, 11, 12} { // unreachable, time exceeded, parameter problem
		r.rule(isFamily(unix.NFPROTO_IPV4), isProto(unix.IPPROTO_ICMP), icmpType(), compare(unix.NFT_CMP_EQ, typ), verdict(verdictAccept))
	}
	r.rule(isFamily(unix.NFPROTO_IPV6), isProto(unix.IPPROTO_ICMPV6), icmpType(), compare(unix.NFT_CMP_LT, 128), verdict(verdictAccept))
	r.rule(isProto(unix.IPPROTO_ICMP), toLoopback4(), verdict(verdictAccept))
	r.rule(isProto(unix.IPPROTO_ICMPV6), toLoopback6(), verdict(verdictAccept))

	r.chain("forward", unix.NF_INET_FORWARD, priorityFilter, verdictDrop)
	r.chain("output", unix.NF_INET_LOCAL_OUT, priorityFilter, verdictDrop)
	r.rule(meta(unix.NFT_META_OIF), compare(unix.NFT_CMP_EQ, lo()...), verdict(verdictAccept))
	return r.reqs
}

// installRules loads the ruleset in one transaction and reads it back: the kernel must hold as many rules as were sent.
func installRules(listen4, listen6 netip.AddrPort) error {
	s, err := openNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.close()
	reqs := rules(listen4, listen6)
	if err := s.transaction(reqs); err != nil {
		return err
	}
	want, got := 0, 0
	for _, r := range reqs {
		if r.kind == nftKind(unix.NFT_MSG_NEWRULE) {
			want++
		}
	}
	list := request{what: "list rules", kind: nftKind(unix.NFT_MSG_GETRULE), body: attrText(genmsg(unix.NFPROTO_INET, 0), unix.NFTA_RULE_TABLE, tableName)}
	if err := s.dump(list, func([]byte) error { got++; return nil }); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the kernel holds %d of %d rules", got, want)
	}
	return nil
}

// transaction wraps requests in a batch, which nftables applies as a whole or not at all. Errors come before the
// acknowledgement of the last request, and a kernel that knows no batch answers its first message with one.
func (s *netlinkSocket) transaction(reqs []request) error {
	batch := make([]request, 0, len(reqs)+2)
	batch = append(batch, request{what: "begin", kind: unix.NFNL_MSG_BATCH_BEGIN, body: genmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)})
	batch = append(batch, reqs...)
	batch[len(batch)-1].flags |= unix.NLM_F_ACK
	batch = append(batch, request{what: "commit", kind: unix.NFNL_MSG_BATCH_END, body: genmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)})
	if err := s.send(batch); err != nil {
		return err
	}
	return s.await(batch, s.seq-1)
}

// unsupported reports whether err means that the kernel was built without what the ruleset needs, rather than that it failed.
func unsupported(err error) bool {
	for _, e := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EPFNOSUPPORT, unix.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func nftKind(msg uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | msg }

// genmsg is a struct nfgenmsg: family, version 0, resource id in network order.
func genmsg(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// ruleWriter collects the messages of a transaction; rules go to the chain that was opened last.
type ruleWriter struct {
	reqs  []request
	where string
}

func (w *ruleWriter) table() {
	b := attrText(genmsg(unix.NFPROTO_INET, 0), unix.NFTA_TABLE_NAME, tableName)
	w.reqs = append(w.reqs, request{what: "add table", kind: nftKind(unix.NFT_MSG_NEWTABLE), flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: b})
}

func (w *ruleWriter) chain(name string, hook uint32, priority int32, policy uint32) {
	w.where = name
	h := attrBE(nil, unix.NFTA_HOOK_HOOKNUM, hook)
	h = attrBE(h, unix.NFTA_HOOK_PRIORITY, uint32(priority))
	b := attrText(genmsg(unix.NFPROTO_INET, 0), unix.NFTA_CHAIN_TABLE, tableName)
	b = attrText(b, unix.NFTA_CHAIN_NAME, name)
	b = nested(b, unix.NFTA_CHAIN_HOOK, h)
	b = attrBE(b, unix.NFTA_CHAIN_POLICY, policy)
	b = attrText(b, unix.NFTA_CHAIN_TYPE, "filter")
	w.reqs = append(w.reqs, request{what: "add chain " + name, kind: nftKind(unix.NFT_MSG_NEWCHAIN), flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: b})
}

func (w *ruleWriter) rule(exprs ...expression) {
	var list []byte
	for _, parts := range exprs {
		for _, e := range parts {
			list = nested(list, unix.NFTA_LIST_ELEM, e)
		}
	}
	b := attrText(genmsg(unix.NFPROTO_INET, 0), unix.NFTA_RULE_TABLE, tableName)
	b = attrText(b, unix.NFTA_RULE_CHAIN, w.where)
	b = nested(b, unix.NFTA_RULE_EXPRESSIONS, list)
	w.reqs = append(w.reqs, request{what: "add a rule to chain " + w.where, kind: nftKind(unix.NFT_MSG_NEWRULE), flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, body: b})
}
