package git_test

import (
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
	"postern/internal/core/git"
)

func host(t testing.TB, s string) gate.Host {
	t.Helper()
	h, err := gate.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func target(t testing.TB, s string) gate.Path {
	t.Helper()
	p, err := gate.ParsePath(s)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return p
}

func TestTheFourRequestsOfSmartHTTPAreRecognised(t *testing.T) {
	h := host(t, "github.com")
	for _, c := range []struct {
		method gate.Method
		target string
		op     git.Op
		repo   string
	}{
		{gate.GET, "/acme/widgets/info/refs?service=git-upload-pack", git.DiscoverFetch, "github.com/acme/widgets"},
		{gate.GET, "/acme/widgets.git/info/refs?service=git-upload-pack", git.DiscoverFetch, "github.com/acme/widgets"},
		{gate.GET, "/Acme/Widgets.git/info/refs?service=git-receive-pack", git.DiscoverPush, "github.com/acme/widgets"},
		{gate.POST, "/acme/widgets.git/git-upload-pack", git.Fetch, "github.com/acme/widgets"},
		{gate.POST, "/acme/widgets.git/git-receive-pack", git.Push, "github.com/acme/widgets"},
		{gate.POST, "/a/b/c/d/git-receive-pack", git.Push, "github.com/a/b/c/d"},
		{gate.POST, "/%61cme/widgets/git-upload-pack", git.Fetch, "github.com/acme/widgets"},
		{gate.POST, "/one/git-upload-pack", git.Fetch, "github.com/one"},
	} {
		got := git.Classify(h, c.method, target(t, c.target))
		if got.Op != c.op || got.Repo.String() != c.repo {
			t.Errorf("%s %s is %s of %q", c.method, c.target, got.Op, got.Repo)
		}
	}
}

func TestWhatGitClientsDoNotSendIsNotGit(t *testing.T) {
	h := host(t, "github.com")
	for _, c := range []struct {
		method gate.Method
		target string
	}{
		{gate.GET, "/acme/widgets"}, {gate.GET, "/"}, {gate.GET, "/info/refs?service=git-upload-pack"}, {gate.POST, "/git-upload-pack"}, {gate.POST, "/.git/git-upload-pack"},
		// the dumb protocol
		{gate.GET, "/acme/widgets/info/refs"}, {gate.GET, "/acme/widgets/HEAD"}, {gate.GET, "/acme/widgets/objects/info/packs"}, {gate.GET, "/acme/widgets/info/refs?"},
		// another method
		{gate.POST, "/acme/widgets/info/refs?service=git-upload-pack"}, {gate.HEAD, "/acme/widgets/info/refs?service=git-upload-pack"}, {gate.GET, "/acme/widgets/git-upload-pack"},
		{gate.PUT, "/acme/widgets/git-receive-pack"}, {gate.NoMethod, "/acme/widgets/git-receive-pack"},
		// another query
		{gate.GET, "/acme/widgets/info/refs?service=git-upload-pack&x=1"}, {gate.GET, "/acme/widgets/info/refs?x=1&service=git-receive-pack"}, {gate.GET, "/acme/widgets/info/refs?service=git-receive-pack&service=git-upload-pack"},
		{gate.GET, "/acme/widgets/info/refs?service=git-upload-pac%6b"}, {gate.GET, "/acme/widgets/info/refs?service=git-upload-archive"}, {gate.GET, "/acme/widgets/info/refs?Service=git-upload-pack"},
		{gate.POST, "/acme/widgets/git-receive-pack?"}, {gate.POST, "/acme/widgets/git-upload-pack?x=1"}, {gate.POST, "/acme/widgets/git-receive-pack?service=git-upload-pack"},
		// another path
		{gate.POST, "/acme/widgets/git-receive-pack/"}, {gate.GET, "/acme/widgets/info/refs/?service=git-upload-pack"}, {gate.POST, "/acme/widgets/GIT-RECEIVE-PACK"}, {gate.POST, "/acme/widgets/git-receive-pack;x"},
		{gate.POST, "/acme%2Fwidgets/git-receive-pack"}, {gate.POST, "/acme/widgets%2Fgit-receive-pack"}, {gate.POST, "/acme/-x/git-receive-pack"}, {gate.POST, "/acme/a%20b/git-receive-pack"},
		{gate.POST, "/acme/widgets.git.git/git-receive-pack"}, {gate.POST, "/acme/widgets.GIT/git-receive-pack"}, {gate.POST, "/acme/widgets;x/git-receive-pack"}, {gate.POST, "/acme/widgets.git/info/lfs/objects/batch"},
	} {
		if got := git.Classify(h, c.method, target(t, c.target)); got != (git.Request{}) {
			t.Errorf("%s %s is %s of %q", c.method, c.target, got.Op, got.Repo)
		}
	}
	if got := git.Classify(gate.Host{}, gate.POST, target(t, "/acme/widgets/git-receive-pack")); got != (git.Request{}) {
		t.Errorf("without a host it is %s", got.Op)
	}
	if got := git.Classify(h, gate.POST, gate.Path{}); got != (git.Request{}) {
		t.Errorf("without a path it is %s", got.Op)
	}
}

func TestOps(t *testing.T) {
	for op, want := range map[git.Op]struct {
		name             string
		writes, discover bool
	}{
		git.NotGit: {"none", false, false}, git.DiscoverFetch: {"discover-fetch", false, true}, git.DiscoverPush: {"discover-push", true, true},
		git.Fetch: {"fetch", false, false}, git.Push: {"push", true, false}, git.Op(99): {"none", false, false},
	} {
		if op.String() != want.name || op.Writes() != want.writes || op.Discovers() != want.discover {
			t.Errorf("%d: %s, writes %v, discovers %v", op, op, op.Writes(), op.Discovers())
		}
	}
}

// TestAPushIsNeverTakenForAFetch: whatever surrounds the words, a request that a forge could take for a push is a push or no git at all.
func TestAPushIsNeverTakenForAFetch(t *testing.T) {
	h := host(t, "github.com")
	words := rapid.SampledFrom([]string{"/a", "/b.git", "/info/refs", "/git-upload-pack", "/git-receive-pack", "?", "service=git-upload-pack", "service=git-receive-pack", "&", "%2F", ";", "/"})
	rapid.Check(t, func(t *rapid.T) {
		text := "/r"
		for _, w := range rapid.SliceOfN(words, 1, 6).Draw(t, "words") {
			text += w
		}
		p, err := gate.ParsePath(text)
		if err != nil {
			return
		}
		m := rapid.SampledFrom([]gate.Method{gate.GET, gate.POST}).Draw(t, "method")
		got := git.Classify(h, m, p)
		query, _ := p.Query()
		switch got.Op {
		case git.NotGit:
			if got != (git.Request{}) {
				t.Fatalf("%s: not git, but of %q", text, got.Repo)
			}
		case git.Fetch:
			if query != "" || p.Decoded()[len(p.Decoded())-len("/git-upload-pack"):] != "/git-upload-pack" {
				t.Fatalf("%s is a fetch", text)
			}
		case git.DiscoverFetch:
			if query != "service=git-upload-pack" {
				t.Fatalf("%s asks for a fetch", text)
			}
		}
		if got.Op != git.NotGit && got.Repo.Host() != h {
			t.Fatalf("%s is of %q", text, got.Repo)
		}
	})
}

func FuzzClassify(f *testing.F) {
	f.Add(true, "/acme/widgets.git/info/refs?service=git-upload-pack")
	f.Add(false, "/acme/widgets.git/git-receive-pack")
	f.Add(false, "/a/info/refs/git-upload-pack")
	f.Fuzz(func(t *testing.T, get bool, text string) {
		p, err := gate.ParsePath(text)
		if err != nil {
			return
		}
		m := gate.POST
		if get {
			m = gate.GET
		}
		got := git.Classify(host(t, "git.test"), m, p)
		if (got.Op == git.NotGit) != got.Repo.IsZero() {
			t.Fatalf("%s: %s of %q", text, got.Op, got.Repo)
		}
		if again, err := gate.ParseRepo(got.Repo.String()); got.Op != git.NotGit && (err != nil || again != got.Repo) {
			t.Fatalf("%s: %q, %v", text, got.Repo, err)
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	h := host(b, "github.com")
	ordinary, fetch := target(b, "/repos/acme/widgets/pulls?per_page=100"), target(b, "/acme/widgets.git/git-upload-pack")
	b.ReportAllocs()
	for b.Loop() {
		git.Classify(h, gate.GET, ordinary)
		git.Classify(h, gate.POST, fetch)
	}
}
