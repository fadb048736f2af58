package proxy

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

func base(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// fields of the request that a rule with these slots is asked with: {main}, {other} and {foreign} are placeholders of the rule's credential,
// of another one of this session, and of another session.
type credentialTest struct {
	target string // "/" when empty
	fields []string
	want   gate.Reason // none: passes
	slot   string      // where the sink finds the credential: a field's whole line, or "?query"
	query  string      // what the sink sees of the query, but for the credential
}

func (w *world) fill(s, foreign string) string {
	r := strings.NewReplacer("{main}", w.tokens["main"], "{other}", w.tokens["other"], "{foreign}", foreign,
		"{basic user:main}", base("user:"+w.tokens["main"]), "{basic main:}", base(w.tokens["main"]+":"), "{basic main:x-oauth-basic}", base(w.tokens["main"]+":x-oauth-basic"),
		"{basic user:own}", base("user:own"), "{basic user:other}", base("user:"+w.tokens["other"]), "{base64 main}", base(w.tokens["main"]),
		"{percent main}", strings.ReplaceAll(w.tokens["main"], "-", "%2D"), "{secret}", w.upstream.secret, "{basic bot:secret}", base("bot:"+w.upstream.secret))
	return r.Replace(s)
}

func (test credentialTest) run(t *testing.T, rule policy.Rule) {
	w := begin(t, rule)
	foreign := newPlaceholder(t)
	target := test.target
	if target == "" {
		target = "/"
	}
	var fields []string
	for _, f := range test.fields {
		fields = append(fields, w.fill(f, foreign))
	}
	a := w.ask(w.tls("a.test"), get(w.fill(target, foreign), "a.test", fields...))
	if test.want != gate.ReasonNone {
		w.refused(a, test.want)
		if w.upstream.trips.Load() != 0 {
			t.Error("the upstream was asked")
		}
		return
	}
	seen, o := w.passed(a)
	want := "GET / HTTP/1.1\r\nHost: a.test\r\n"
	if q, ok := strings.CutPrefix(test.slot, "?"); ok {
		want = "GET /?" + strings.Trim(test.query+"&"+w.fill(q, foreign), "&") + " HTTP/1.1\r\nHost: a.test\r\n"
	} else {
		if test.query != "" {
			want = "GET /?" + test.query + " HTTP/1.1\r\nHost: a.test\r\n"
		}
		if test.slot != "" {
			want += w.fill(test.slot, foreign) + "\r\n"
		}
	}
	if seen.head != want+"\r\n" {
		t.Errorf("sent %q, want %q", seen.head, want)
	}
	if used := test.slot != ""; used != (o.Credential == "main" && o.Receipt != "") {
		t.Errorf("recorded %+v", o)
	}
}

func TestSwapPutsTheCredentialInItsSlotAndNowhereElse(t *testing.T) {
	two := []policy.Slot{header("X-Api-Key", ""), header("Authorization", "Bearer {}")}
	for name, tests := range map[string]struct {
		slots []policy.Slot
		tests map[string]credentialTest
	}{
		"two headers": {two, map[string]credentialTest{
			"none stays none":             {},
			"the first":                   {fields: []string{"X-Api-Key: {main}"}, slot: "X-Api-Key: {secret}"},
			"the second":                  {fields: []string{"Authorization: Bearer {main}"}, slot: "Authorization: Bearer {secret}"},
			"both":                        {fields: []string{"X-Api-Key: {main}", "Authorization: Bearer {main}"}, slot: "X-Api-Key: {secret}"},
			"cookies are dropped":         {fields: []string{"X-Api-Key: {main}", "Cookie: a=b"}, slot: "X-Api-Key: {secret}"},
			"proxy credentials too":       {fields: []string{"X-Api-Key: {main}", "Proxy-Authorization: Basic eA=="}, slot: "X-Api-Key: {secret}"},
			"E01 own key":                 {fields: []string{"X-Api-Key: own"}, want: gate.ReasonForeignCredential},
			"E01 own bearer":              {fields: []string{"Authorization: Bearer own"}, want: gate.ReasonForeignCredential},
			"E02 own beside ours":         {fields: []string{"X-Api-Key: {main}", "Authorization: Bearer own"}, want: gate.ReasonForeignCredential},
			"E02 another carrier":         {fields: []string{"X-Api-Key: {main}", "X-Goog-Api-Key: own"}, want: gate.ReasonForeignCredential},
			"E02 as CGI spells it":        {fields: []string{"X-Api-Key: {main}", "X_Api_Key: own"}, want: gate.ReasonForeignCredential},
			"E02 as CGI spells another":   {fields: []string{"Private_Token: own"}, want: gate.ReasonForeignCredential},
			"E02 own twice":               {fields: []string{"X-Api-Key: {main}", "X-Api-Key: own"}, want: gate.ReasonPlaceholderLeak},
			"E02 query":                   {target: "/?key=own", want: gate.ReasonForeignCredential},
			"E02 access_token":            {target: "/?a=b&access_token=own", want: gate.ReasonForeignCredential},
			"E02 encoded access_token":    {target: "/?acce%73s_token=own", want: gate.ReasonForeignCredential},
			"E02 access_token behind ;":   {target: "/?a=b;access_token=own", want: gate.ReasonForeignCredential},
			"E02 access_token[]":          {target: "/?access_token[]=own", want: gate.ReasonForeignCredential},
			"E02 ACCESS.TOKEN":            {target: "/?ACCESS.TOKEN=own", want: gate.ReasonForeignCredential},
			"another scheme":              {fields: []string{"Authorization: Basic {basic user:main}"}, want: gate.ReasonPlaceholderLeak},
			"lower-case scheme":           {fields: []string{"Authorization: bearer {main}"}, want: gate.ReasonPlaceholderLeak},
			"more than the placeholder":   {fields: []string{"Authorization: Bearer {main}x"}, want: gate.ReasonPlaceholderLeak},
			"E08 another credential's":    {fields: []string{"X-Api-Key: {other}"}, want: gate.ReasonPlaceholderLeak},
			"E07 another session's":       {fields: []string{"X-Api-Key: {foreign}"}, want: gate.ReasonPlaceholderLeak},
			"E05 in the path":             {target: "/{main}", want: gate.ReasonPlaceholderLeak},
			"E05 in the query":            {target: "/?q={main}", want: gate.ReasonPlaceholderLeak},
			"E05 in User-Agent":           {fields: []string{"User-Agent: {main}"}, want: gate.ReasonPlaceholderLeak},
			"E05 in Referer":              {fields: []string{"Referer: https://a.test/?k={main}"}, want: gate.ReasonPlaceholderLeak},
			"E05 in Cookie":               {fields: []string{"Cookie: a={main}"}, want: gate.ReasonPlaceholderLeak},
			"E05 beside the slot":         {fields: []string{"X-Api-Key: {main}", "X-Other: {main}"}, want: gate.ReasonPlaceholderLeak},
			"E05 another's in a field":    {fields: []string{"X-Other: {foreign}"}, want: gate.ReasonPlaceholderLeak},
			"E05 another's in the query":  {target: "/?q={foreign}", want: gate.ReasonPlaceholderLeak},
			"E09 base64 in a field":       {fields: []string{"X-Other: {base64 main}"}, want: gate.ReasonPlaceholderLeak},
			"E09 percent in the query":    {target: "/?q={percent main}", want: gate.ReasonPlaceholderLeak},
			"E09 base64 in Authorization": {fields: []string{"Authorization: Bearer {base64 main}"}, want: gate.ReasonPlaceholderLeak},
		}},
		"basic": {[]policy.Slot{basicSlot("bot")}, map[string]credentialTest{
			"password":              {fields: []string{"Authorization: Basic {basic user:main}"}, slot: "Authorization: Basic {basic bot:secret}"},
			"user":                  {fields: []string{"Authorization: Basic {basic main:}"}, slot: "Authorization: Basic {basic bot:secret}"},
			"user, x-oauth-basic":   {fields: []string{"Authorization: Basic {basic main:x-oauth-basic}"}, slot: "Authorization: Basic {basic bot:secret}"},
			"own":                   {fields: []string{"Authorization: Basic {basic user:own}"}, want: gate.ReasonForeignCredential},
			"another credential's":  {fields: []string{"Authorization: Basic {basic user:other}"}, want: gate.ReasonPlaceholderLeak},
			"torn":                  {fields: []string{"Authorization: Basic !"}, want: gate.ReasonForeignCredential},
			"bearer where basic is": {fields: []string{"Authorization: Bearer {main}"}, want: gate.ReasonPlaceholderLeak},
		}},
		"query": {[]policy.Slot{header("X-Goog-Api-Key", ""), querySlot("key")}, map[string]credentialTest{
			"alone":            {target: "/?key={main}", slot: "?key={secret}"},
			"among others":     {target: "/?a=%zz&key={main}&b;c", slot: "?key={secret}", query: "a=%zz&b;c"},
			"encoded":          {target: "/?k%65y={percent main}", slot: "?key={secret}"},
			"in both":          {target: "/?a=b&key={main}", fields: []string{"X-Goog-Api-Key: {main}"}, slot: "X-Goog-Api-Key: {secret}", query: "a=b"},
			"own":              {target: "/?key=own", want: gate.ReasonForeignCredential},
			"own beside ours":  {target: "/?key={main}&key=own", want: gate.ReasonForeignCredential},
			"own behind ours":  {target: "/?key={main};key=own", want: gate.ReasonForeignCredential},
			"KEY":              {target: "/?KEY=own", want: gate.ReasonForeignCredential},
			"another's":        {target: "/?key={other}", want: gate.ReasonForeignCredential},
			"empty query kept": {target: "/?", fields: []string{"X-Goog-Api-Key: {main}"}, slot: "X-Goog-Api-Key: {secret}", query: " "},
		}},
	} {
		for what, test := range tests.tests {
			t.Run(name+", "+what, func(t *testing.T) {
				if test.query == " " {
					test.query = ""
					w := begin(t, allow("a.test", inject(policy.InjectSwap, "main", tests.slots...)))
					seen, _ := w.passed(w.ask(w.tls("a.test"), get("/?", "a.test", "X-Goog-Api-Key: "+w.tokens["main"])))
					if !strings.HasPrefix(seen.head, "GET /? HTTP/1.1\r\n") {
						t.Errorf("sent %q", seen.head)
					}
					return
				}
				test.run(t, allow("a.test", inject(policy.InjectSwap, "main", tests.slots...)))
			})
		}
	}
}

func TestSetPutsTheCredentialOnEveryRequest(t *testing.T) {
	for name, tests := range map[string]struct {
		slot  policy.Slot
		tests map[string]credentialTest
	}{
		"header": {header("Authorization", "Bearer {}"), map[string]credentialTest{
			"none":                    {slot: "Authorization: Bearer {secret}"},
			"E01 own":                 {fields: []string{"Authorization: Bearer own"}, slot: "Authorization: Bearer {secret}"},
			"its placeholder":         {fields: []string{"Authorization: Bearer {main}"}, slot: "Authorization: Bearer {secret}"},
			"E02 every other carrier": {fields: []string{"X-Api-Key: own", "Cookie: a=b", "Private-Token: own", "X_Api_Key: own", "X.Auth~Token: own"}, slot: "Authorization: Bearer {secret}"},
			"E08 another's":           {fields: []string{"Authorization: Bearer {other}"}, want: gate.ReasonPlaceholderLeak},
			"E07 another session's":   {fields: []string{"Authorization: Bearer {foreign}"}, want: gate.ReasonPlaceholderLeak},
			"E05 elsewhere":           {fields: []string{"X-Other: {main}"}, want: gate.ReasonPlaceholderLeak},
			"E02 own in the query":    {target: "/?private_token=own", want: gate.ReasonForeignCredential},
		}},
		"basic": {basicSlot("bot"), map[string]credentialTest{
			"none":                    {slot: "Authorization: Basic {basic bot:secret}"},
			"placeholder as password": {fields: []string{"Authorization: Basic {basic user:main}"}, slot: "Authorization: Basic {basic bot:secret}"},
			"placeholder as user":     {fields: []string{"Authorization: Basic {basic main:}"}, slot: "Authorization: Basic {basic bot:secret}"},
		}},
		"query": {querySlot("key"), map[string]credentialTest{
			"none":          {slot: "?key={secret}"},
			"own":           {target: "/?key=own&a=b&key=own", slot: "?key={secret}", query: "a=b"},
			"own behind ;":  {target: "/?a=b;key=own", want: gate.ReasonForeignCredential},
			"its own again": {target: "/?key={main}", slot: "?key={secret}"},
		}},
	} {
		for what, test := range tests.tests {
			t.Run(name+", "+what, func(t *testing.T) {
				test.run(t, allow("a.test", inject(policy.InjectSet, "main", tests.slot)))
			})
		}
	}
}

func TestWithoutACredentialTheClientsOwnAreRemoved(t *testing.T) {
	fields := []string{"Authorization: Bearer own", "X-Api-Key: own", "api-key: own", "X-Goog-Api-Key: own", "Cookie: a=b", "PRIVATE-TOKEN: own", "X_Vault_Token: own"}
	for what, test := range map[string]credentialTest{
		"E02":                    {fields: fields},
		"E06 placeholder":        {fields: []string{"Authorization: Bearer {main}"}, want: gate.ReasonPlaceholderLeak},
		"another session's":      {fields: []string{"Authorization: Bearer {foreign}"}, want: gate.ReasonPlaceholderLeak},
		"E02 access_token":       {target: "/?access_token=own", want: gate.ReasonForeignCredential},
		"a common word is not":   {target: "/?key=a&token=b", query: "key=a&token=b"},
		"a placeholder in ?key=": {target: "/?key={main}", want: gate.ReasonPlaceholderLeak},
	} {
		t.Run(what, func(t *testing.T) { test.run(t, allow("a.test")) })
	}
	w := begin(t, allow("a.test"))
	if _, o := w.passed(w.ask(w.tls("a.test"), get("/", "a.test", "X-Api-Key: own"))); !strings.Contains(o.Detail, "X-Api-Key") {
		t.Errorf("not on record: %+v", o)
	}
}

func TestARuleMayKeepTheClientsCredentials(t *testing.T) {
	w := begin(t, allow("a.test", keep))
	c := w.tls("a.test")
	br := bufio.NewReader(c)
	_, err := io.WriteString(c, get("/?access_token=own", "a.test", "Authorization: Bearer own", "Cookie: a=b"))
	must(t, err)
	seen, _ := w.passed(w.read(br, "GET"))
	if want := "GET /?access_token=own HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer own\r\nCookie: a=b\r\n\r\n"; sorted(seen.head) != sorted(want) {
		t.Errorf("sent %q", seen.head)
	}
	_, err = io.WriteString(c, get("/", "a.test", "Authorization: Bearer "+w.tokens["main"]))
	must(t, err)
	w.refused(w.read(br, "GET"), gate.ReasonPlaceholderLeak)
}

func TestAPlaceholderToAWrongHostIsRefusedAndSaid(t *testing.T) { // E06
	w := begin(t, allow("a.test", inject(policy.InjectSwap, "main", header("X-Api-Key", ""))))
	a := w.ask(w.tls("evil.test"), get("/", "evil.test", "X-Api-Key: "+w.tokens["main"]))
	if a.reason() != gate.ReasonHostNotListed {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if r := w.recordedDenial(gate.ReasonHostNotListed); !strings.Contains(r.Detail, "placeholder") {
		t.Errorf("%+v", r)
	}
}

func TestASessionWithoutPlaceholdersKnowsOthers(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.config.Placeholders = nil
	w.start()
	w.refused(w.ask(w.tls("a.test"), get("/", "a.test", "X-Any: "+newPlaceholder(t))), gate.ReasonPlaceholderLeak)
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test")))
}

func TestBodiesAndTrailersAreNoSlots(t *testing.T) { // E05
	w := begin(t, allow("a.test", inject(policy.InjectSwap, "main", header("X-Api-Key", ""))))
	var body string
	var trailer http.Header
	w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body, trailer = string(b), r.Trailer
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}, nil)
	post := func(trailer string) string {
		ph := w.tokens["main"]
		return "POST / HTTP/1.1\r\nHost: a.test\r\nX-Api-Key: " + ph + "\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Api-Key, X-Auth_Token\r\n\r\n" +
			hex(len(ph)) + "\r\n" + ph + "\r\n0\r\n" + trailer + "\r\n"
	}
	a := w.ask(w.tls("a.test"), post("X-Sum: 1\r\nX-Api-Key: own\r\nX-Auth_Token: own\r\nX-Unannounced: 2\r\n"))
	seen, _ := w.passed(a)
	if body != w.tokens["main"] || strings.Contains(seen.head, w.tokens["main"]) || strings.Count(seen.head, w.upstream.secret) != 1 {
		t.Errorf("sent %q and %q", seen.head, body)
	}
	if len(trailer) != 1 || trailer.Get("X-Sum") != "1" {
		t.Errorf("the trailer arrived as %v", trailer)
	}
	a = w.ask(w.tls("a.test"), post("X-Sum: "+w.tokens["main"]+"\r\n"))
	if d, o := w.log.next(t), w.log.next(t); a.reason() != gate.ReasonPlaceholderLeak || d.Verdict != "allow" || o.Reason != gate.ReasonPlaceholderLeak {
		t.Errorf("%d %q, %+v", a.StatusCode, a.body, o)
	}
}

func TestKeysInSubprotocolsAreRefused(t *testing.T) {
	w := begin(t, allow("a.test", sockets))
	ws := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}
	w.refused(w.ask(w.tls("a.test"), get("/", "a.test", append(ws, "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.own")...)), gate.ReasonForeignCredential)
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test", append(ws, "Sec-WebSocket-Protocol: realtime")...)))
}

func TestACredentialThatTheServiceRefuses(t *testing.T) {
	slot := inject(policy.InjectSwap, "main", header("X-Api-Key", ""))
	w := newWorld(t, allow("a.test", slot))
	w.config.Voice = func(gate.Host) policy.Voice { return policy.VoiceAnthropic }
	w.start()
	w.sink.says("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 6\r\n\r\nsecret")
	a := w.ask(w.tls("a.test"), get("/", "a.test", "X-Api-Key: "+w.tokens["main"]))
	if a.StatusCode != 400 || a.reason() != gate.ReasonCredentialRefused || a.Header.Get("Www-Authenticate") != "" || a.Header.Get("X-Should-Retry") != "false" || !strings.Contains(a.body, "main") {
		t.Errorf("%v %q", a.Response, a.body)
	}
	if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonCredentialRefused || o.Status != 400 {
		t.Errorf("%+v, %+v", d, o)
	}
	w.sink.take()
	if a, _ := w.ask(w.tls("a.test"), get("/", "a.test")), w.sink.take(); a.StatusCode != 401 || a.body != "secret" { // without a credential it is the service's word
		t.Errorf("%v %q", a.Response, a.body)
	}
}

func TestACredentialThatCannotBeHadIsRefusedBeforeAnythingHappens(t *testing.T) {
	w := newWorld(t, allow("a.test", inject(policy.InjectSet, "main", header("X-Api-Key", ""))))
	w.upstream.ready = func() error {
		return &gate.Failure{Reason: gate.ReasonCredentialSource, Detail: "main", Err: errors.New("of the host")}
	}
	w.start()
	a := w.ask(w.tls("a.test"), get("/", "a.test"))
	if strings.Contains(a.body, "of the host") {
		t.Errorf("%q", a.body)
	}
	w.refused(a, gate.ReasonCredentialSource)
	w.upstream.ready = nil
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test")))
}

func TestNothingIsInjectedInCleartext(t *testing.T) { // E17, E18
	w := begin(t, allow("a.test", inject(policy.InjectSet, "main", header("X-Api-Key", ""))), allow("plain.test", cleartext))
	w.refused(w.ask(w.connectTo("a.test", 80), get("/", "a.test")), gate.ReasonSchemeNotListed)
	seen, o := w.passed(w.ask(w.connectTo("plain.test", 80), get("/x", "plain.test", "X-Api-Key: own")))
	if want := get("/x", "plain.test"); seen.head != want || o.Scheme != "http" || o.Port != 80 {
		t.Errorf("sent %q, recorded %+v", seen.head, o)
	}
	w.refused(w.ask(w.connectTo("plain.test", 80), get("/", "a.test")), gate.ReasonAuthorityMismatch)
	w.refused(w.ask(w.connectTo("plain.test", 8080), get("/", "plain.test:8080")), gate.ReasonPortNotListed)
	w.refused(w.ask(w.connectTo("plain.test", 8080), get("/", "plain.test")), gate.ReasonAuthorityMismatch)
	w.refused(w.ask(w.tls("plain.test"), get("/", "plain.test")), gate.ReasonSchemeNotListed)
}

func TestWhatComesBackWithACredential(t *testing.T) { // E16, E20, C14
	head := "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://evil.test/\r\nSet-Cookie: session=s\r\nAlt-Svc: h3=\":443\"\r\nConnection: X-Hop\r\nX-Hop: 1\r\n" +
		"Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n"
	for _, credential := range []bool{false, true} {
		w := begin(t, allow("a.test", inject(policy.InjectSwap, "main", header("X-Api-Key", ""))))
		w.sink.says(head)
		var fields []string
		if credential {
			fields = []string{"X-Api-Key: " + w.tokens["main"]}
		}
		a := w.ask(w.tls("a.test"), get("/", "a.test", fields...))
		w.passed(a)
		if a.StatusCode != 307 || a.Header.Get("Location") != "https://evil.test/" || a.Header.Get("X-Kept") != "1" {
			t.Errorf("%v", a.Header)
		}
		for _, gone := range []string{"Alt-Svc", "X-Hop", "Keep-Alive", "Proxy-Authenticate", "Connection"} {
			if a.Header.Get(gone) != "" {
				t.Errorf("%s came through", gone)
			}
		}
		if got := a.Header.Get("Set-Cookie"); credential != (got == "") {
			t.Errorf("credential %v: Set-Cookie %q", credential, got)
		}
		if n := w.upstream.trips.Load(); n != 1 {
			t.Errorf("%d requests", n)
		}
	}
}
