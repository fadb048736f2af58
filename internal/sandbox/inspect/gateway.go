package inspect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// reasonHeader is on every refusal of the gateway's.
const reasonHeader = "X-Postern-Reason"

const maxAnswer = 64 << 10 // bytes read of any answer

// answeredByGateway asks an address for a name that no policy allows: over TLS with a certificate of the session, the answer is no.
func answeredByGateway(ctx context.Context, p *Plan, address string) Result {
	ca, err := certificate(p.CA)
	if err != nil {
		return notHeld("the session's certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	status, reason, err := refusal(ctx, p, address, roots)
	if err != nil {
		return notHeld("%s: %s", address, plain(err))
	}
	if reason == "" || status < 400 {
		return notHeld("%s answered %d without a reason of the gateway's", address, status)
	}
	return held("%s: %d %s", address, status, reason)
}

// refusal makes one HTTPS request with p.Host as its server's name. Nil roots are the system's.
func refusal(ctx context.Context, p *Plan, address string, roots *x509.CertPool) (status int, reason string, err error) {
	c, err := dial(ctx, "tcp", address)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	secure := tls.Client(c, &tls.Config{ServerName: p.Host, RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		return 0, "", err
	}
	return get(secure, p.Host, "/")
}

// get makes one HTTP/1.1 request on a connection.
func get(c net.Conn, host, path string) (status int, reason string, err error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, maxAnswer)), nil)
	if err != nil {
		return 0, "", err
	}
	resp.Body.Close()
	return resp.StatusCode, resp.Header.Get(reasonHeader), nil
}

func metadataRefused(ctx context.Context, p *Plan) Result {
	if len(p.Metadata) == 0 {
		return notHeld("no address to ask")
	}
	evidence := ""
	for _, address := range p.Metadata {
		c, err := dial(ctx, "tcp", address)
		if err != nil {
			return notHeld("%s: not answered by the gateway: %s", address, plain(err))
		}
		host, _, _ := net.SplitHostPort(address)
		if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
			host = "[" + host + "]"
		}
		status, reason, err := get(c, host, "/latest/meta-data/")
		c.Close()
		switch {
		case err != nil:
			return notHeld("%s: %s", address, plain(err))
		case status < 400 || reason == "":
			return notHeld("%s answered %d", address, status)
		}
		if evidence != "" {
			evidence += "; "
		}
		evidence += fmt.Sprintf("%s: %d %s", address, status, reason)
	}
	return held("%s", evidence)
}

// ask sends one DNS query (RFC 1035) and returns the first address of the answer.
func ask(ctx context.Context, q question, host string) (netip.Addr, error) {
	name, err := dnsmessage.NewName(host + ".")
	if err != nil {
		return netip.Addr{}, err
	}
	kind := dnsmessage.TypeA
	if q.v6 {
		kind = dnsmessage.TypeAAAA
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0x2f91, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := query.Pack()
	if err != nil {
		return netip.Addr{}, err
	}
	answer, err := exchange(ctx, q.network, q.server, packed)
	if err != nil {
		return netip.Addr{}, err
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return netip.Addr{}, err
	}
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			return netip.AddrFrom4(body.A), nil
		case *dnsmessage.AAAAResource:
			return netip.AddrFrom16(body.AAAA), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address: %s", m.RCode)
}

// exchange sends one message and reads one; over TCP each stands behind its length (RFC 7766 §8).
func exchange(ctx context.Context, network, server string, query []byte) ([]byte, error) {
	c, err := dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	b := make([]byte, 4<<10)
	if network != "tcp" {
		n, err := c.Read(b)
		return b[:n], err
	}
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(b))
	if n > len(b) {
		return nil, errors.New("an answer of more than 4 KiB")
	}
	_, err = io.ReadFull(c, b[:n])
	return b[:n], err
}

func certificate(text string) (*x509.Certificate, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

// holds reports whether a PEM bundle has the certificate in it.
func holds(bundle []byte, ca *x509.Certificate) bool {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return false
		}
		if bytes.Equal(block.Bytes, ca.Raw) {
			return true
		}
	}
}
