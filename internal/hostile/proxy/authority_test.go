package proxy

import (
	"testing"
)

func TestAnAllowedRequestIsForwardedAndRecorded(t *testing.T) {
	w := begin(t, allow("a.test"))
	a := w.ask(w.tls("a.test"), get("/x?q=1", "a.test"))
	seen, _ := w.passed(a)
	if want := "GET /x?q=1 HTTP/1.1\r\nHost: a.test\r\n\r\n"; seen.head != want || a.body != "ok" {
		t.Errorf("sent %q, answered %q", seen.head, a.body)
	}
}
