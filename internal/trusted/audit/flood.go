package audit

import (
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

const (
	floodWindow = time.Second
	floodEach   = 100  // identical denials written one by one in a window
	floodAll    = 1000 // denials written one by one in a window
	floodKeys   = 1024 // different denials counted in a window; beyond, they are counted by reason alone
)

// flood holds back denials that repeat, so that a sandbox cannot fill the disk by being refused. Every one is counted.
// The zero flood is ready.
type flood struct {
	start   time.Time
	written int
	holding bool
	tallies map[floodKey]*tally
}

type floodKey struct {
	reason gate.Reason
	host   string
}

type tally struct {
	written int
	held    record.Record // the latest one held back; Count says how many
}

// ends is when the window ends, zero when nothing is held back.
func (f *flood) ends() time.Time {
	if !f.holding {
		return time.Time{}
	}
	return f.start.Add(floodWindow)
}

// holdBack reports whether the record is only counted. It is called with mu held.
func (l *Log) holdBack(r *record.Record) bool {
	if r.Kind != record.Decision || r.Verdict != "deny" {
		return false
	}
	now, f := time.Now(), &l.flood
	l.release(now, false)
	if f.tallies == nil {
		f.start, f.tallies = now, map[floodKey]*tally{}
	}
	key := floodKey{r.Reason, r.Host}
	t := f.tallies[key]
	if t == nil && len(f.tallies) >= floodKeys {
		key.host = "" // too many different hosts
		t = f.tallies[key]
	}
	if t == nil {
		t = &tally{}
		f.tallies[key] = t
	}
	if t.written < floodEach && f.written < floodAll && key.host == r.Host {
		t.written++
		f.written++
		return false
	}
	if !f.holding {
		f.holding = true
		signal(l.later)
	}
	count := t.held.Count + max(1, r.Count)
	t.held = *r
	t.held.Count = count
	if key.host != r.Host {
		t.held.Host, t.held.Path, t.held.Repo, t.held.Detail = "", "", "", "many different hosts"
	}
	return true
}

// release writes what was held back once its window is over, or at once. It is called with mu held and the log not broken.
func (l *Log) release(now time.Time, atOnce bool) {
	f := &l.flood
	if f.tallies == nil || !atOnce && now.Sub(f.start) < floodWindow && !now.Before(f.start) {
		return
	}
	for _, t := range f.tallies {
		if t.held.Count > 0 {
			l.encode(t.held)
			l.pending.appends++
			if l.flushBy.IsZero() {
				l.flushBy = now
				signal(l.later)
			}
		}
	}
	*f = flood{}
}
