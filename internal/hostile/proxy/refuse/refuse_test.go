package refuse

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
)

var event = gate.NewEventID([10]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})

func sample(v policy.Voice) Refusal {
	return Refusal{Reason: gate.ReasonMethodNotListed, Rule: "postern.yaml:23", Event: event, Host: "api.stripe.com", Voice: v}
}

func answer(f Refusal, method, accept string) *http.Response {
	r := httptest.NewRequest(method, "https://api.stripe.com/v1/payouts", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	Write(w, r, f)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const sampleLine = "postern refused this request to api.stripe.com: the host is allowed, but not with this method (method.not_listed, postern.yaml:23). " +
	"To mend it: add the method to the rule's `methods:`. On the host: postern explain e041061050r3gg28a"

func TestVoices(t *testing.T) {
	rows := []struct {
		name, accept string
		voice        policy.Voice
		status       int
		contentType  string
		body         string
	}{
		{"plain", "*/*", policy.VoicePlain, 403, "text/plain; charset=utf-8", strings.ReplaceAll(sampleLine, ". ", "\n") + "\n"},
		{"git voice, but no git request", "", policy.VoiceGit, 403, "text/plain; charset=utf-8", strings.ReplaceAll(sampleLine, ". ", "\n") + "\n"},
		{"unknown voice", "", policy.Voice(200), 403, "text/plain; charset=utf-8", strings.ReplaceAll(sampleLine, ". ", "\n") + "\n"},
		{"plain voice, JSON client", "text/html, application/vnd.github+json", policy.VoicePlain, 403, "application/json",
			`{"error":"` + sampleLine + `","reason":"method.not_listed","event":"e041061050r3gg28a","message":"` + sampleLine + `","hint":"add the method to the rule's ` + "`methods:`" + `"}` + "\n"},
		{"json", "*/*", policy.VoiceJSON, 403, "application/json",
			`{"error":"` + sampleLine + `","reason":"method.not_listed","event":"e041061050r3gg28a","message":"` + sampleLine + `","hint":"add the method to the rule's ` + "`methods:`" + `"}` + "\n"},
		{"anthropic", "application/json", policy.VoiceAnthropic, 400, "application/json",
			`{"type":"error","error":{"type":"invalid_request_error","message":"` + sampleLine + `"},"request_id":"e041061050r3gg28a"}` + "\n"},
		{"openai", "text/event-stream", policy.VoiceOpenAI, 400, "application/json",
			`{"error":{"message":"` + sampleLine + `","type":"invalid_request_error","param":null,"code":"postern_denied"}}` + "\n"},
		{"google", "*/*", policy.VoiceGoogle, 400, "application/json",
			`{"error":{"code":400,"message":"` + sampleLine + `","status":"INVALID_ARGUMENT","details":[]}}` + "\n"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			resp := answer(sample(row.voice), "POST", row.accept)
			if resp.StatusCode != row.status || resp.Header.Get("Content-Type") != row.contentType {
				t.Errorf("%d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
			}
			if got := text(t, resp); got != row.body {
				t.Errorf("got  %q\nwant %q", got, row.body)
			}
			for k, want := range map[string]string{
				"X-Postern-Reason": "method.not_listed", "X-Postern-Event": event.String(), "X-Should-Retry": "false",
				"Cache-Control": "no-store", "Content-Length": strconv.Itoa(len(row.body)),
			} {
				if got := resp.Header.Get(k); got != want {
					t.Errorf("%s: %q, want %q", k, got, want)
				}
			}
			head := answer(sample(row.voice), "HEAD", row.accept)
			if body := text(t, head); body != "" || head.StatusCode != row.status || head.Header.Get("Content-Length") != strconv.Itoa(len(row.body)) {
				t.Errorf("HEAD: %d, %q", head.StatusCode, body)
			}
		})
	}
}

func TestStatusNeverInvitesARetryOrALogin(t *testing.T) {
	for _, info := range gate.Reasons() {
		for _, v := range []policy.Voice{policy.VoicePlain, policy.VoiceJSON, policy.VoiceAnthropic, policy.VoiceOpenAI, policy.VoiceGoogle, policy.VoiceGit} {
			for _, override := range []int{0, 200, 301, 401, 407, 408, 409, 425, 429, 500, 502, 503, 999, -1} {
				f := Refusal{Reason: info.Code, Voice: v, Status: override}
				if got := f.status(); !final(got) {
					t.Errorf("%s in voice %v with status %d: %d", info.Code, v, override, got)
				}
			}
		}
	}
	f := sample(policy.VoiceOpenAI)
	if f.Status = 426; answer(f, "GET", "").StatusCode != 426 {
		t.Error("426, which sends codex from WebSocket to events, was not kept")
	}
}

func TestStatusOfReasons(t *testing.T) {
	for r, want := range map[gate.Reason][2]int{
		gate.ReasonHostNotListed:     {403, 400},
		gate.ReasonAuthorityMismatch: {421, 421},
		gate.ReasonMalformedRequest:  {400, 400},
		gate.ReasonLimitHeader:       {431, 400},
		gate.ReasonLimitBody:         {413, 400},
		gate.ReasonLimitRequests:     {403, 400},
		gate.ReasonUpstreamTLS:       {403, 400},
		gate.ReasonNone:              {403, 400},
	} {
		for i, v := range []policy.Voice{policy.VoicePlain, policy.VoiceAnthropic} {
			if got := answer(Refusal{Reason: r, Voice: v}, "GET", "").StatusCode; got != want[i] {
				t.Errorf("%q in voice %v: %d, want %d", r, v, got, want[i])
			}
		}
	}
}

func TestZeroRefusalIsAnInternalError(t *testing.T) {
	resp := answer(Refusal{}, "GET", "")
	if got := text(t, resp); resp.StatusCode != 403 || !strings.Contains(got, "(internal.error)") || strings.Contains(got, "explain") {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	if _, ok := resp.Header["X-Postern-Event"]; ok {
		t.Error("an event id without an event")
	}
}

func TestWhatTheSandboxSentIsShownEscaped(t *testing.T) {
	hostile := "evil\x1b[2J\r\nX-Injected: 1\x00\u009b\u202e\u2066\u200b\x7f\xff\\\"<b>%s" + strings.Repeat("a", 400)
	for _, v := range []policy.Voice{policy.VoicePlain, policy.VoiceJSON, policy.VoiceAnthropic, policy.VoiceOpenAI, policy.VoiceGoogle} {
		f := Refusal{Reason: gate.ReasonMalformedHost, Host: hostile, Rule: hostile[:40], Detail: hostile[:40], Event: event, Voice: v}
		resp := answer(f, "GET", "")
		body := text(t, resp)
		if strings.ContainsFunc(body, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
			t.Errorf("%v: %q", v, body)
		}
		if strings.Contains(body, strings.Repeat("a", 400)) {
			t.Errorf("%v: the host was not cut", v)
		}
		if v != policy.VoicePlain && !json.Valid([]byte(body)) {
			t.Errorf("%v: not JSON: %q", v, body)
		}
		if resp.Header.Get("X-Injected") != "" {
			t.Errorf("%v: a header was injected", v)
		}
	}
	if got, want := escape("a\u202eb\u009b\x1b\xff\\", 100), `a\u{202e}b\u{9b}\x1b\xff\\`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestEveryReasonHasAPlainExplanation(t *testing.T) {
	for _, info := range gate.Reasons() {
		f := Refusal{Reason: info.Code}
		if line := f.Line(); !printable(line) || !strings.Contains(line, info.Meaning) || !strings.Contains(line, info.Remedy) {
			t.Errorf("%s: %q", info.Code, line)
		}
	}
}

func TestGitAnswersAreOneLineOfTheRightType(t *testing.T) {
	for op, want := range map[git.Op]string{
		git.DiscoverFetch: "application/x-git-upload-pack-advertisement",
		git.DiscoverPush:  "application/x-git-receive-pack-advertisement",
		git.Fetch:         "application/x-git-upload-pack-result",
		git.Push:          "application/x-git-receive-pack-result",
	} {
		f := sample(policy.VoicePlain)
		f.Git.Op = op
		resp := answer(f, "GET", "application/json")
		body := text(t, resp)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != want || resp.Header.Get("Content-Length") != strconv.Itoa(len(body)) {
			t.Errorf("%v: %d %v", op, resp.StatusCode, resp.Header)
		}
		n, err := strconv.ParseInt(body[:4], 16, 32)
		if err != nil || op != git.Push && (int(n) != len(body) || !strings.HasPrefix(body[4:], "ERR postern refused")) {
			t.Errorf("%v: %q", op, body)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("api.example.com", 253)
	f.Add("evil\x1b[2J\u202e\xff", 5)
	f.Add(strings.Repeat("\\", 300), 253)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 1<<10 - 1
		got := escape(s, limit)
		for i := 0; i < len(got); i++ {
			if got[i] < ' ' || got[i] > '~' {
				t.Fatalf("%q became %q", s, got)
			}
		}
		if len(got) > 8*limit+3 || !utf8.ValidString(got) {
			t.Fatalf("%d bytes became %d", len(s), len(got))
		}
	})
}
