package limit

import (
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is any time: the package asks for none itself.
func epoch() time.Time { return time.Unix(1_000_000_000, 0) }

// finite fails for each field of a struct of limits that is zero, negative or without bound.
func finite(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			finite(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Int, reflect.Int64:
		if v.Int() <= 0 || v.Int() >= math.MaxInt64/2 {
			t.Errorf("%s is %d", name, v.Int())
		}
	case reflect.Float64:
		if !(v.Float() > 0 && v.Float() <= maxRate) {
			t.Errorf("%s is %v", name, v.Float())
		}
	default:
		t.Errorf("%s is a %s: teach this test what finite means for it", name, v.Kind())
	}
}

func TestEveryDefaultIsFinite(t *testing.T) {
	finite(t, "Defaults", reflect.ValueOf(Defaults()))
	finite(t, "DefaultTotals", reflect.ValueOf(DefaultTotals()))
}

func TestCompleteFillsOnlyWhatIsMissing(t *testing.T) {
	if got := (Limits{}).Complete(); got != Defaults() {
		t.Errorf("the zero Limits complete to %+v", got)
	}
	if got := Defaults().Complete(); got != Defaults() {
		t.Errorf("the defaults complete to %+v", got)
	}
	if got := (Totals{}).Complete(); got != DefaultTotals() {
		t.Errorf("the zero Totals complete to %+v", got)
	}
	// Setting one field must change that field alone, whichever it is.
	for i := range reflect.TypeFor[Limits]().NumField() {
		var l Limits
		f := reflect.ValueOf(&l).Elem().Field(i)
		if f.Kind() == reflect.Struct {
			f.Set(reflect.ValueOf(Rate{Per: 3, Burst: 7}))
		} else {
			f.SetInt(3)
		}
		got, want := l.Complete(), Defaults()
		reflect.ValueOf(&want).Elem().Field(i).Set(f)
		if got != want {
			t.Errorf("%s: got %+v", reflect.TypeFor[Limits]().Field(i).Name, got)
		}
		if f.Kind() != reflect.Struct {
			f.SetInt(-1)
			if got := l.Complete(); got != Defaults() {
				t.Errorf("negative %s: got %+v", reflect.TypeFor[Limits]().Field(i).Name, got)
			}
		}
	}
}

func TestRatesAreCompletedToFiniteBuckets(t *testing.T) {
	def := Rate{Per: 5, Burst: 9}
	for _, c := range []struct{ in, want Rate }{
		{Rate{}, def},
		{Rate{Per: -1, Burst: 3}, def},
		{Rate{Per: math.NaN(), Burst: 3}, def},
		{Rate{Per: 10}, Rate{10, 10}},
		{Rate{Per: 0.1}, Rate{0.1, 1}},
		{Rate{Per: 10, Burst: -1}, Rate{10, 10}},
		{Rate{Per: math.Inf(1), Burst: 2}, Rate{maxRate, 2}},
		{Rate{Per: math.Inf(1)}, Rate{maxRate, maxRate}},
		{Rate{Per: 2, Burst: 3}, Rate{2, 3}},
	} {
		if got := c.in.or(def); got != c.want {
			t.Errorf("%+v completes to %+v, want %+v", c.in, got, c.want)
		}
	}
}

func TestZeroSessionRefusesEverything(t *testing.T) {
	for name, s := range map[string]*Session{"zero": {}, "zero global": New(Limits{}, &Global{})} {
		now := epoch()
		for what, got := range map[string][2]gate.Reason{
			"connection": {s.Connection(), gate.ReasonLimitConnections},
			"handshake":  {s.Handshake(now), gate.ReasonLimitHandshakes},
			"request":    {s.Request(now), gate.ReasonLimitRequests},
			"dns":        {s.DNS(now), gate.ReasonLimitDNS},
			"leaf":       {s.Leaf(now), gate.ReasonLimitLeaves},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %s answers %q, want %q", name, what, got[0], got[1])
			}
		}
		s.ConnectionDone()
		if n := s.Connections(); n != 0 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
	if got := new(Session).Upload(1); got != gate.ReasonLimitUpload {
		t.Errorf("upload answers %q", got)
	}
}

// rates are the four token buckets of a session, each as a question.
func rates(s *Session) map[gate.Reason]func(time.Time) gate.Reason {
	return map[gate.Reason]func(time.Time) gate.Reason{
		gate.ReasonLimitHandshakes: s.Handshake,
		gate.ReasonLimitRequests:   s.Request,
		gate.ReasonLimitDNS:        s.DNS,
		gate.ReasonLimitLeaves:     s.Leaf,
	}
}

func TestEachRateHasItsBurstAndRefillsWithTime(t *testing.T) {
	r := Rate{Per: 2, Burst: 5}
	s := New(Limits{Handshakes: r, Requests: r, DNS: r, Leaves: r}, nil)
	for reason, ask := range rates(s) {
		now := epoch()
		passed := func() (n int) {
			for {
				switch got := ask(now); got {
				case gate.ReasonNone:
					n++
				case reason:
					return n
				default:
					t.Fatalf("%s: answers %q", reason, got)
				}
			}
		}
		if n := passed(); n != 5 {
			t.Errorf("%s: %d at once, want 5", reason, n)
		}
		now = now.Add(time.Second)
		if n := passed(); n != 2 {
			t.Errorf("%s: %d a second later, want 2", reason, n)
		}
		now = now.Add(-time.Hour)
		if n := passed(); n != 0 {
			t.Errorf("%s: %d after the clock went back, want none", reason, n)
		}
		now = now.Add(24 * time.Hour)
		if n := passed(); n != 5 {
			t.Errorf("%s: %d a day later, want the burst of 5", reason, n)
		}
	}
}

func TestDefaultsLetRealWorkThrough(t *testing.T) {
	now := epoch()
	s := New(Limits{}, NewGlobal(Totals{}))
	for range 16 { // streams, then a benchmark's worth of requests at 5,000 a second
		if got := s.Connection(); got != gate.ReasonNone {
			t.Fatal(got)
		}
	}
	for i := range 40_000 {
		if got := s.Request(now.Add(time.Duration(i) * 200 * time.Microsecond)); got != gate.ReasonNone {
			t.Fatalf("request %d: %s", i, got)
		}
	}
	for i := range 1500 { // a package manager's burst of new connections
		if got := s.Handshake(now); got != gate.ReasonNone {
			t.Fatalf("handshake %d: %s", i, got)
		}
	}
}

func TestGlobalBoundsAllSessionsTogether(t *testing.T) {
	r := Rate{Per: 1, Burst: 3}
	g := NewGlobal(Totals{Connections: 3, Handshakes: r, Requests: r, DNS: r, Leaves: r})
	a, b := New(Limits{}, g), New(Limits{}, g)
	now := epoch()
	for _, s := range []*Session{a, a, b} {
		if got := s.Connection(); got != gate.ReasonNone {
			t.Fatal(got)
		}
	}
	if a.Connection() != gate.ReasonLimitConnections || b.Connection() != gate.ReasonLimitConnections {
		t.Error("a fourth connection passes")
	}
	if a.Connections() != 2 || b.Connections() != 1 || g.Connections() != 3 {
		t.Errorf("a refusal by the total leaves %d, %d and %d slots taken", a.Connections(), b.Connections(), g.Connections())
	}
	a.ConnectionDone()
	if got := b.Connection(); got != gate.ReasonNone {
		t.Errorf("a slot that was given back: %s", got)
	}
	for reason, ask := range rates(a) {
		other := rates(b)[reason]
		for _, q := range []func(time.Time) gate.Reason{ask, other, ask} {
			if got := q(now); got != gate.ReasonNone {
				t.Errorf("%s: within the total: %s", reason, got)
			}
		}
		if ask(now) != reason || other(now) != reason {
			t.Errorf("%s: beyond the total", reason)
		}
	}
}

func TestASessionBeyondItsLimitsTakesNothingFromOthers(t *testing.T) {
	r := Rate{Per: 1, Burst: 2}
	g := NewGlobal(Totals{Connections: 4, Handshakes: Rate{Per: 1, Burst: 4}, Requests: Rate{Per: 1, Burst: 4}, DNS: Rate{Per: 1, Burst: 4}, Leaves: Rate{Per: 1, Burst: 4}})
	greedy := New(Limits{Connections: 2, Handshakes: r, Requests: r, DNS: r, Leaves: r}, g)
	other := New(Limits{}, g)
	now := epoch()
	for range 100 {
		greedy.Connection()
		for _, ask := range rates(greedy) {
			ask(now)
		}
	}
	for range 2 {
		if got := other.Connection(); got != gate.ReasonNone {
			t.Error(got)
		}
		for reason, ask := range rates(other) {
			if got := ask(now); got != gate.ReasonNone {
				t.Errorf("%s: the other session is refused", reason)
			}
		}
	}
}

func TestConnectionDoneTwiceMakesNoRoomForTwo(t *testing.T) {
	g := NewGlobal(Totals{Connections: 2})
	a, b := New(Limits{Connections: 1}, g), New(Limits{}, g)
	a.Connection()
	b.Connection()
	for range 5 {
		a.ConnectionDone()
	}
	if n := g.Connections(); n != 1 {
		t.Errorf("%d connections are counted, one is open", n)
	}
}

func TestUploadIsAllOrNothing(t *testing.T) {
	s := New(Limits{Upload: 100}, nil)
	for _, c := range []struct {
		n    int64
		want gate.Reason
	}{
		{60, gate.ReasonNone}, {41, gate.ReasonLimitUpload}, {-1, gate.ReasonLimitUpload}, {math.MinInt64, gate.ReasonLimitUpload},
		{math.MaxInt64, gate.ReasonLimitUpload}, {0, gate.ReasonNone}, {40, gate.ReasonNone}, {1, gate.ReasonLimitUpload}, {0, gate.ReasonNone},
	} {
		if got := s.Upload(c.n); got != c.want {
			t.Errorf("Upload(%d) after %d: %q, want %q", c.n, s.Uploaded(), got, c.want)
		}
	}
	if n := s.Uploaded(); n != 100 {
		t.Errorf("%d bytes were taken", n)
	}
}

func TestNoBoundIsOvershotByManyAtOnce(t *testing.T) {
	const workers, each = 64, 200
	r := Rate{Per: 0.001, Burst: 1000}
	s := New(Limits{Connections: 10, Handshakes: r, Requests: r, DNS: r, Leaves: r, Upload: 5000}, NewGlobal(Totals{}))
	now := epoch()
	var open, most, uploaded, connected atomic.Int64
	passed := map[gate.Reason]*atomic.Int64{}
	for reason := range rates(s) {
		passed[reason] = new(atomic.Int64)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				if s.Connection() == gate.ReasonNone {
					n := open.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					connected.Add(1)
					open.Add(-1)
					s.ConnectionDone()
				}
				for reason, ask := range rates(s) {
					if ask(now) == gate.ReasonNone {
						passed[reason].Add(1)
					}
				}
				if s.Upload(7) == gate.ReasonNone {
					uploaded.Add(7)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 10 || connected.Load() == 0 {
		t.Errorf("%d connections at once, the limit is 10; %d in all", most.Load(), connected.Load())
	}
	if s.Connections() != 0 || s.global.Connections() != 0 {
		t.Errorf("%d and %d slots are never given back", s.Connections(), s.global.Connections())
	}
	for reason, n := range passed {
		if n.Load() != 1000 {
			t.Errorf("%s: %d passed, the burst is 1000", reason, n.Load())
		}
	}
	if n := uploaded.Load(); n != 4998 || s.Uploaded() != n {
		t.Errorf("%d bytes passed and %d are counted, the budget has room for 4998", n, s.Uploaded())
	}
}

func TestSlotsFollowAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 5).Draw(t, "most")
		total := rapid.IntRange(1, 8).Draw(t, "total")
		g := NewGlobal(Totals{Connections: total})
		sessions := []*Session{New(Limits{Connections: most}, g), New(Limits{Connections: most}, g)}
		used := make([]int, len(sessions))
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(sessions)-1).Draw(t, "session")
			if rapid.Bool().Draw(t, "open") {
				room := used[i] < most && used[0]+used[1] < total
				if got := sessions[i].Connection() == gate.ReasonNone; got != room {
					t.Fatalf("Connection passes: %v, want %v at %v of %d and %d", got, room, used, most, total)
				} else if got {
					used[i]++
				}
			} else {
				sessions[i].ConnectionDone()
				used[i] = max(0, used[i]-1)
			}
			if sessions[i].Connections() != used[i] || g.Connections() != used[0]+used[1] {
				t.Fatalf("counts %d and %d, want %v", sessions[i].Connections(), g.Connections(), used)
			}
		}
	})
}

func TestQuestionsAllocateNothing(t *testing.T) {
	s := New(Limits{}, NewGlobal(Totals{}))
	now := epoch()
	if n := testing.AllocsPerRun(100, func() {
		s.Connection()
		s.Request(now)
		s.Handshake(now)
		s.Upload(1)
		s.ConnectionDone()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	s := New(Limits{Requests: Rate{Per: maxRate}}, NewGlobal(Totals{Requests: Rate{Per: maxRate}}))
	now := epoch()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		s.Request(now)
	}
}
