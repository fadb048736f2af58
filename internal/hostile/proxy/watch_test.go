package proxy

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"postern/internal/core/gate"
)

// cuts is a watchdog that notes its cuts: progress 10 s, answer 30 s.
func cuts() (w *watchdog, stages *[]stage) {
	stages = new([]stage)
	w = &watchdog{progress: 10 * time.Second, answer: 30 * time.Second}
	w.cut = func(s stage) { *stages = append(*stages, s) }
	w.touch()
	w.timer = time.AfterFunc(w.progress, w.check)
	return w, stages
}

func TestAWatchdogMeasuresProgressAndNotTheWhole(t *testing.T) {
	after := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
	for name, test := range map[string]struct {
		play func(w *watchdog)
		want []stage
		why  gate.Reason
	}{
		"an upload that moves":             {func(w *watchdog) { after(9 * time.Second); w.touch(); after(9 * time.Second) }, nil, ""},
		"an upload that stops":             {func(w *watchdog) { after(9 * time.Second); w.touch(); after(10 * time.Second) }, []stage{uploading}, gate.ReasonLimitTime},
		"an upload whose end waits":        {func(w *watchdog) { after(9 * time.Second); w.uploaded(); after(29 * time.Second) }, nil, ""},
		"an answer that does not come":     {func(w *watchdog) { w.uploaded(); after(30 * time.Second) }, []stage{waiting}, gate.ReasonUpstreamTimeout},
		"an answer that stops":             {func(w *watchdog) { w.uploaded(); after(20 * time.Second); w.answers(); after(10 * time.Second) }, []stage{answering}, gate.ReasonLimitTime},
		"an upload that ends in an answer": {func(w *watchdog) { w.answers(); after(5 * time.Second); w.uploaded(); after(10 * time.Second) }, []stage{answering}, gate.ReasonLimitTime},
		"ended from outside":               {func(w *watchdog) { w.end(gate.ReasonSessionEnded); w.why.set(gate.ReasonLimitBody) }, []stage{uploading}, gate.ReasonSessionEnded},
		// Its exchange is over: whatever the transport still does, the connection is the next request's.
		"stopped":             {func(w *watchdog) { w.stop(); after(time.Hour) }, nil, ""},
		"uploaded, stopped":   {func(w *watchdog) { w.stop(); w.uploaded(); after(time.Hour) }, nil, ""},
		"fired when it was":   {func(w *watchdog) { w.stop(); after(time.Hour); w.check() }, nil, ""},
		"ended, stopped":      {func(w *watchdog) { w.stop(); w.end(gate.ReasonSessionEnded); after(time.Hour) }, nil, gate.ReasonSessionEnded},
		"changed when it was": {func(w *watchdog) { w.end(gate.ReasonSessionEnded); w.cutting(w.cut) }, []stage{uploading, uploading}, gate.ReasonSessionEnded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, got := cuts()
				test.play(w)
				w.stop()
				if why := w.why.reason(""); !slices.Equal(*got, test.want) || why != test.why {
					t.Errorf("cut in %v for %q, want %v for %q", *got, why, test.want, test.why)
				}
			})
		})
	}
}
