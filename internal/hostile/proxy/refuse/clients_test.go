package refuse

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
)

// tool runs a real client without the host's configuration. A missing tool is a failure.
func tool(t *testing.T, dir string, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is needed for this test: %v", name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, diag bytes.Buffer
	c := exec.CommandContext(ctx, path, args...)
	c.Dir, c.Stdout, c.Stderr = dir, &out, &diag
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@a.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@a.test"}, env...)
	err = c.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end", name)
	}
	return out.String(), diag.String(), err
}

// tlsServer serves h over TLS and returns its address and a file with its root.
func tlsServer(t *testing.T, h http.HandlerFunc) (url, ca string, s *httptest.Server) {
	t.Helper()
	s = httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, ca, s
}

// forge refuses one operation of git and answers the others as a forge with an empty repository would.
func forge(t *testing.T, refused git.Op) (url string, env []string) {
	t.Helper()
	host, err := gate.ParseHost("forge.example.com")
	if err != nil {
		t.Fatal(err)
	}
	url, ca, _ := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
		path, _ := gate.ParsePath(r.RequestURI)
		method, _ := gate.ParseMethod(r.Method)
		req := git.Classify(host, method, path)
		io.Copy(io.Discard, r.Body)
		if req.Op == refused {
			Write(w, r, Refusal{Reason: gate.ReasonRepoNotListed, Event: event, Host: host.String(), Voice: policy.VoiceGit, Git: req})
			return
		}
		switch req.Op {
		case git.DiscoverFetch:
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			io.WriteString(w, string(pktLine(nil, "# service=git-upload-pack\n"))+"0000"+
				string(pktLine(nil, "version 2\n"))+string(pktLine(nil, "ls-refs\n"))+string(pktLine(nil, "fetch\n"))+"0000")
		case git.DiscoverPush:
			w.Header().Set("Content-Type", "application/x-git-receive-pack-advertisement")
			io.WriteString(w, string(pktLine(nil, "# service=git-receive-pack\n"))+"0000"+
				string(pktLine(nil, strings.Repeat("0", 40)+" capabilities^{}\x00report-status side-band-64k delete-refs ofs-delta\n"))+"0000")
		default:
			t.Errorf("unexpected %s %s", r.Method, r.RequestURI)
		}
	})
	return url + "/acme/widgets.git", []string{"GIT_SSL_CAINFO=" + ca}
}

func TestGitShowsTheRefusal(t *testing.T) {
	work := t.TempDir()
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"commit", "-q", "--allow-empty", "-m", "first"}} {
		if _, diag, err := tool(t, work, nil, "git", args...); err != nil {
			t.Fatal(err, diag)
		}
	}
	const why = "postern refused this request to forge.example.com: this session may not use this repository (repo.not_listed)"
	for name, row := range map[string]struct {
		refused git.Op
		args    []string
		want    []string
	}{
		"ls-remote":       {git.DiscoverFetch, []string{"ls-remote", "URL"}, []string{"fatal: remote error: " + why, "postern explain " + event.String()}},
		"ls-remote v0":    {git.DiscoverFetch, []string{"-c", "protocol.version=0", "ls-remote", "URL"}, []string{"fatal: remote error: " + why}},
		"clone":           {git.DiscoverFetch, []string{"clone", "URL", "copy"}, []string{"fatal: remote error: " + why}},
		"push, discovery": {git.DiscoverPush, []string{"push", "URL", "main"}, []string{"fatal: remote error: " + why}},
		"fetch v2":        {git.Fetch, []string{"ls-remote", "URL"}, []string{"fatal: remote error: " + why}},
		"push":            {git.Push, []string{"push", "URL", "main"}, []string{"remote: " + why, "unpack failed: " + why}},
	} {
		t.Run(name, func(t *testing.T) {
			url, env := forge(t, row.refused)
			for i, a := range row.args {
				if a == "URL" {
					row.args[i] = url
				}
			}
			_, diag, err := tool(t, work, env, "git", row.args...)
			if err == nil {
				t.Error("git thinks it went well")
			}
			for _, want := range row.want {
				if !strings.Contains(diag, want) {
					t.Errorf("git printed %q, without %q", diag, want)
				}
			}
		})
	}
}

func TestCurlShowsTheRefusal(t *testing.T) {
	url, ca, _ := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { Write(w, r, sample(policy.VoicePlain)) })
	for _, version := range []string{"--http1.1", "--http2"} {
		out, diag, err := tool(t, "", nil, "curl", "-sS", version, "--cacert", ca, "-w", "%{http_code}", url)
		if want := strings.ReplaceAll(sampleLine, ". ", "\n") + "\n403"; err != nil || out != want {
			t.Errorf("%s: %q, %v %s", version, out, err, diag)
		}
	}
	if out, _, err := tool(t, "", nil, "curl", "-sSI", "--cacert", ca, url); err != nil || !strings.Contains(out, "x-postern-event: "+event.String()) {
		t.Errorf("HEAD: %q, %v", out, err)
	}
}

func TestGRPCShowsTheRefusal(t *testing.T) {
	_, _, s := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { Write(w, r, sample(policy.VoicePlain)) })
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	conn, err := grpc.NewClient(s.Listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = conn.Invoke(ctx, "/pkg.Service/Method", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != sampleLine {
		t.Errorf("%v", err)
	}
}

// listen accepts one TCP connection on loopback and hands it to serve.
func listen(t *testing.T, serve func(net.Conn)) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		serve(c)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr)
}

func TestSSHShowsTheRefusal(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		f := Refusal{Reason: gate.ReasonSSH, Event: event, Host: "forge.example.com"}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if err := Raw(c, f); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Logf("the client left: %v", err)
		}
	})
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, diag, err := tool(t, "", nil, "ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-p", port, "git@127.0.0.1", "git-upload-pack 'acme/widgets'")
	want := "11: postern refused this request to forge.example.com: SSH does not leave the sandbox (protocol.ssh). To mend it: use the repository's https:// address"
	if err == nil || !strings.Contains(diag, "Received disconnect from 127.0.0.1") || !strings.Contains(diag, want) {
		t.Errorf("ssh printed %q", diag)
	}
	if time.Since(start) > 5*time.Second {
		t.Errorf("it took %v", time.Since(start))
	}
}

func TestGitDaemonClientShowsTheRefusal(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		c.Read(make([]byte, 1<<10))
		Raw(c, Refusal{Reason: gate.ReasonGitProtocol, Event: event})
	})
	_, diag, err := tool(t, "", nil, "git", "ls-remote", "git://"+addr.String()+"/acme/widgets")
	if want := "fatal: remote error: postern refused this request: git:// does not leave the sandbox (protocol.git)"; err == nil || !strings.Contains(diag, want) {
		t.Errorf("git printed %q", diag)
	}
}

func TestRawHTTPIsAWholeAnswer(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		c.Read(make([]byte, 1<<10))
		Raw(c, Refusal{Reason: gate.ReasonDirectToListener, Event: event})
	})
	resp, err := http.Get("http://" + addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 403 || !resp.Close || !strings.HasPrefix(string(b), "postern refused this request: a connection straight") {
		t.Errorf("%d %q, %v", resp.StatusCode, b, err)
	}
	if resp.Header.Get("X-Postern-Event") != event.String() || int(resp.ContentLength) != len(b) {
		t.Errorf("%v", resp.Header)
	}
}
