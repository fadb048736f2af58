package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	manifestVersion = 1
	maxManifest     = 4 << 10 // bytes
	maxNotes        = 8
	maxBaseline     = 16
	manifestSeals   = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
)

// manifest describes the files that follow it.
type manifest struct {
	Version  int      `json:"version"`
	Kinds    []kind   `json:"kinds"`
	Baseline []uint32 `json:"baseline"` // indexes of the links besides lo, all of them down
	Notes    []string `json:"notes"`
}

// seal writes the manifest to a memfd that nobody can change afterwards.
func (m manifest) seal() (*os.File, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > maxManifest {
		return nil, errors.New("too long")
	}
	fd, err := unix.MemfdCreate("postern-capture", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "capture-manifest")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, manifestSeals); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readManifest reads a manifest, sealed or not at all.
func readManifest(f *os.File) (manifest, error) {
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals != manifestSeals {
		return manifest{}, errors.New("not a sealed memfd")
	}
	var buf [maxManifest + 1]byte
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return manifest{}, err
	}
	if n > maxManifest {
		return manifest{}, errors.New("too long")
	}
	return parseManifest(buf[:n])
}

func parseManifest(b []byte) (manifest, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var m manifest
	if err := d.Decode(&m); err != nil {
		return manifest{}, err
	}
	if d.More() {
		return manifest{}, errors.New("more than one value")
	}
	if m.Version != manifestVersion {
		return manifest{}, fmt.Errorf("version %d, want %d", m.Version, manifestVersion)
	}
	if len(m.Notes) > maxNotes || len(m.Baseline) > maxBaseline {
		return manifest{}, errors.New("too many entries")
	}
	return m, nil
}
