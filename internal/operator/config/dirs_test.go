package config_test

import (
	"bytes"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// sourceDir is this package's directory, wherever the test has gone meanwhile.
func sourceDir(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("no caller")
	}
	return filepath.Dir(file)
}

// section is one file of an archive in txtar's form: a line "-- name --" and what follows it.
type section struct {
	name string
	data []byte
}

func readArchive(src []byte) (comment []byte, files []section) {
	for line := range bytes.Lines(src) {
		name, ok := strings.CutPrefix(strings.TrimSuffix(string(line), " --\n"), "-- ")
		switch {
		case ok && bytes.HasSuffix(line, []byte(" --\n")):
			files = append(files, section{name: name})
		case len(files) == 0:
			comment = append(comment, line...)
		default:
			last := &files[len(files)-1]
			last.data = append(last.data, line...)
		}
	}
	return comment, files
}

func writeArchive(comment []byte, files []section) []byte {
	out := bytes.Clone(comment)
	for _, f := range files {
		out = append(out, "-- "+f.name+" --\n"...)
		out = append(out, f.data...)
	}
	return out
}
