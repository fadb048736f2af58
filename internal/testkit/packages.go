package testkit

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/md5"  //nolint:gosec // apt's index format names it beside SHA-256
	"crypto/sha1" //nolint:gosec // npm's registry format has a SHA-1 field beside the SHA-512
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Sample is the text that each sample package holds; a client that printed it has downloaded, verified and run the package.
const Sample = "hello from the sample package"

// Registry is the host name of a public registry under its owner's domain, put together so that no file spells it out.
func Registry(label, domain string) string { return label + "." + domain }

// files serves fixed bytes by path and 404 for all else.
func files(byPath map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := byPath[r.URL.Path]
		if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.NotFound(w, r)
			return
		}
		switch {
		case strings.HasPrefix(string(b[:min(1, len(b))]), "{"):
			w.Header().Set("Content-Type", "application/json")
		case strings.HasPrefix(string(b[:min(9, len(b))]), "<!DOCTYPE"):
			w.Header().Set("Content-Type", "text/html")
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	})
}

// NPM is a registry at host with the package "postern-sample" 1.0.0, whose command of the same name prints Sample.
func NPM(t T, host string) http.Handler {
	t.Helper()
	tgz := tarball(t, map[string]entry{
		"package/package.json": {text: `{"name":"postern-sample","version":"1.0.0","bin":{"postern-sample":"cli.js"},"main":"cli.js"}`},
		"package/cli.js":       {text: "#!/usr/bin/env node\nconsole.log(" + strconv.Quote(Sample) + ")\n", mode: 0o755},
	})
	s512, s1 := sha512.Sum512(tgz), sha1.Sum(tgz) //nolint:gosec // as above
	doc := fmt.Sprintf(`{"name":"postern-sample","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"postern-sample","version":"1.0.0",`+
		`"bin":{"postern-sample":"cli.js"},"main":"cli.js","dist":{"tarball":"https://%s/postern-sample/-/postern-sample-1.0.0.tgz","integrity":"sha512-%s","shasum":"%s"}}}}`,
		host, base64.StdEncoding.EncodeToString(s512[:]), hex.EncodeToString(s1[:]))
	return files(map[string][]byte{"/postern-sample": []byte(doc), "/postern-sample/-/postern-sample-1.0.0.tgz": tgz})
}

const wheel = "postern_sample-1.0.0-py3-none-any.whl"

// PyPIIndex is a simple index (PEP 503) with the package "postern-sample", whose wheel lies at filesHost.
func PyPIIndex(t T, filesHost string) http.Handler {
	t.Helper()
	sum := sha256.Sum256(wheelBytes(t))
	page := fmt.Sprintf("<!DOCTYPE html>\n<html><body><a href=\"https://%s/packages/%s#sha256=%s\">%s</a></body></html>\n", filesHost, wheel, hex.EncodeToString(sum[:]), wheel)
	return files(map[string][]byte{"/simple/postern-sample/": []byte(page)})
}

// PyPIFiles is the file host of PyPIIndex. The module "postern_sample" prints Sample when it is run.
func PyPIFiles(t T) http.Handler {
	t.Helper()
	return files(map[string][]byte{"/packages/" + wheel: wheelBytes(t)})
}

func wheelBytes(t T) []byte {
	t.Helper()
	const info = "postern_sample-1.0.0.dist-info/"
	content := [][2]string{
		{"postern_sample.py", "if __name__ == '__main__':\n    print(" + strconv.Quote(Sample) + ")\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: postern-sample\nVersion: 1.0.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: postern\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record strings.Builder
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	put := func(name, text string) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: epoch()})
		must(t, w, err)
		_, _ = w.Write([]byte(text))
	}
	for _, c := range content {
		sum := sha256.Sum256([]byte(c[1]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", c[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(c[1]))
		put(c[0], c[1])
	}
	put(info+"RECORD", record.String()+info+"RECORD,,\n")
	if err := z.Close(); err != nil {
		t.Fatalf("testkit: wheel: %v", err)
	}
	return b.Bytes()
}

// Apt is a repository ("deb [trusted=yes] https://HOST/debian stable main") with the package "postern-sample", which holds
// /usr/share/postern-sample with the text Sample.
func Apt(t T) http.Handler {
	t.Helper()
	control := "Package: postern-sample\nVersion: 1.0.0\nArchitecture: all\nMaintainer: Ada <ada@example.com>\nDescription: a sample\n"
	deb := archive(map[string][]byte{
		"debian-binary":  []byte("2.0\n"),
		"control.tar.gz": tarball(t, map[string]entry{"./control": {text: control}}),
		"data.tar.gz":    tarball(t, map[string]entry{"./usr/share/postern-sample": {text: Sample + "\n"}}),
	}, "debian-binary", "control.tar.gz", "data.tar.gz")
	const pool = "pool/main/p/postern-sample/postern-sample_1.0.0_all.deb"
	sum, m := sha256.Sum256(deb), md5.Sum(deb) //nolint:gosec // as above
	packages := []byte(control + fmt.Sprintf("Filename: %s\nSize: %d\nMD5sum: %x\nSHA256: %x\n\n", pool, len(deb), m, sum))
	var release strings.Builder
	fmt.Fprintf(&release, "Origin: postern\nSuite: stable\nCodename: stable\nDate: %s\nArchitectures: all amd64 arm64\nComponents: main\nSHA256:\n", time.Now().UTC().Format(time.RFC1123))
	byPath := map[string][]byte{"/debian/" + pool: deb}
	for _, arch := range []string{"all", "amd64", "arm64"} {
		name := "main/binary-" + arch + "/Packages"
		fmt.Fprintf(&release, " %x %d %s\n", sha256.Sum256(packages), len(packages), name)
		byPath["/debian/dists/stable/"+name] = packages
	}
	byPath["/debian/dists/stable/Release"] = []byte(strings.ReplaceAll(release.String(), "UTC", "GMT"))
	return files(byPath)
}

// GoProxy is a module proxy (GOPROXY protocol) with the module example.test/sample v1.0.0, whose function Text returns Sample.
func GoProxy(t T) http.Handler {
	t.Helper()
	const mod, version = "example.test/sample", "v1.0.0"
	gomod := "module " + mod + "\n\ngo 1.21\n"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{"go.mod": gomod, "sample.go": "// Package sample is a sample.\npackage sample\n\n// Text is a greeting.\nfunc Text() string { return " + strconv.Quote(Sample) + " }\n"} {
		w, err := z.Create(mod + "@" + version + "/" + name)
		must(t, w, err)
		_, _ = w.Write([]byte(text))
	}
	if err := z.Close(); err != nil {
		t.Fatalf("testkit: module: %v", err)
	}
	info := []byte(`{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`)
	at := "/" + mod + "/@v/"
	return files(map[string][]byte{at + "list": []byte(version + "\n"), at + version + ".info": info, at + version + ".mod": []byte(gomod), at + version + ".zip": b.Bytes(), "/" + mod + "/@latest": info})
}

type entry struct {
	text string
	mode int64 // 0: 0644
}

func epoch() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func tarball(t T, content map[string]entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for name, e := range content {
		if e.mode == 0 {
			e.mode = 0o644
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: e.mode, Size: int64(len(e.text)), ModTime: epoch(), Format: tar.FormatUSTAR}); err != nil {
			t.Fatalf("testkit: tar: %v", err)
		}
		_, _ = tw.Write([]byte(e.text))
	}
	if err := tw.Close(); err != nil {
		t.Fatalf("testkit: tar: %v", err)
	}
	if err := zw.Close(); err != nil {
		t.Fatalf("testkit: gzip: %v", err)
	}
	return b.Bytes()
}

// archive is an ar archive in the common format that deb(5) describes.
func archive(members map[string][]byte, order ...string) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, name := range order {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, epoch().Unix(), 0, 0, "100644", len(members[name]))
		b.Write(members[name])
		if len(members[name])%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// AptScript is a shell script that updates from the repository at host and prints what the sample package holds, with nothing but
// the working directory to write to and no root.
func AptScript(host, options string) string {
	return `set -e
mkdir -p apt/lists/partial apt/cache/archives/partial apt/etc/sources.list.d apt/etc/preferences.d apt/etc/apt.conf.d apt/etc/trusted.gpg.d
: > apt/status
echo "deb [trusted=yes] https://` + host + `/debian stable main" > apt/etc/sources.list
apt="apt-get -q -o Dir::State=$PWD/apt -o Dir::State::status=$PWD/apt/status -o Dir::Cache=$PWD/apt/cache -o Dir::Etc=$PWD/apt/etc -o Dir::Etc::main=/dev/null -o APT::Sandbox::User=  ` + options + `"
$apt update
$apt download postern-sample
dpkg-deb --fsys-tarfile postern-sample_1.0.0_all.deb | tar -xO ./usr/share/postern-sample
`
}
