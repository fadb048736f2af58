package main

import (
	"io"
	"strings"
	"testing"
)

func TestCountsLeavesAndEveryWayToFail(t *testing.T) {
	const stream = `{"Action":"run","Package":"postern/a","Test":"TestOne"}
{"Action":"output","Package":"postern/a","Test":"TestOne","Output":"fine\n"}
{"Action":"pass","Package":"postern/a","Test":"TestOne"}
{"Action":"run","Package":"postern/a","Test":"TestTable"}
{"Action":"run","Package":"postern/a","Test":"TestTable/x"}
{"Action":"pass","Package":"postern/a","Test":"TestTable/x"}
{"Action":"run","Package":"postern/a","Test":"TestTable/y"}
{"Action":"fail","Package":"postern/a","Test":"TestTable/y"}
{"Action":"fail","Package":"postern/a","Test":"TestTable"}
{"Action":"run","Package":"postern/a","Test":"TestSkipped"}
{"Action":"skip","Package":"postern/a","Test":"TestSkipped"}
{"Action":"run","Package":"postern/a","Test":"TestHung"}
{"Action":"fail","Package":"postern/a"}
{"Action":"build-output","ImportPath":"postern/b","Output":"b.go:1: undefined\n"}
{"Action":"fail","Package":"postern/b"}
{"Action":"run","Package":"postern/c","Test":"TestLost"}
`
	s := &suite{out: io.Discard}
	s.read(strings.NewReader(stream))
	if s.passed != 2 {
		t.Errorf("%d passed, want 2 (TestOne and TestTable/x)", s.passed)
	}
	want := "a.TestTable/y, a.TestSkipped was skipped, a.TestHung did not end, b, postern/c: its tests never ended"
	if got := strings.Join(s.failures, ", "); got != want || s.failed != 5 {
		t.Errorf("%d failed: %s\nwant 5: %s", s.failed, got, want)
	}
}
