// Contestant serves one session's gateway as an explicit proxy on a port of this machine, so that a benchmark can put it beside other
// proxies. It is no part of the product: whoever reaches the port has what the policy allows.
package main

import (
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // -pprof
	"os"
	"os/signal"
	"syscall"

	"postern/internal/core/gate"
	"postern/internal/daemon"
	"postern/internal/operator/config"
	"postern/internal/trusted/audit"
	"postern/internal/trusted/ca"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "loopback address to serve")
	policy := flag.String("config", "", "policy file")
	trust := flag.String("trust", "", "PEM file that the session's CA is appended to")
	logs := flag.String("audit", "", "audit directory")
	profile := flag.String("pprof", "", "address to serve profiles on")
	flag.Parse()
	if err := serve(*listen, *policy, *trust, *logs, *profile); err != nil {
		fmt.Fprintln(os.Stderr, "contestant:", err)
		os.Exit(1)
	}
}

func serve(listen, policy, trust, logs, profile string) error {
	f, err := config.Load(policy)
	if err != nil {
		return err
	}
	compiled, err := f.Profile("default")
	if err != nil {
		return err
	}
	var random [10]byte
	_, _ = rand.Read(random[:])
	id := gate.NewSessionID(random)
	log, err := audit.Open(audit.Config{Dir: logs, Session: id})
	if err != nil {
		return err
	}
	defer log.Close()
	authority, err := ca.New(ca.Config{Session: id})
	if err != nil {
		return err
	}
	pem, err := os.OpenFile(trust, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = pem.Write(authority.PEM()); err != nil {
		return err
	}
	if err = pem.Close(); err != nil {
		return err
	}
	g, err := daemon.NewGateway(daemon.GatewayConfig{Session: id, Profile: compiled, Authority: authority, Recorder: log,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	defer g.Close()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if profile != "" {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(profile, nil)) }()
	}
	go g.ServeExplicit(l)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	return l.Close()
}
