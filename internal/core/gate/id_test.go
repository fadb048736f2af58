package gate_test

import (
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func TestIDsAreReadBackAndNothingElseIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b [10]byte
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "random"))
		e, s := gate.NewEventID(b), gate.NewSessionID(b)
		if got, err := gate.ParseEventID(e.String()); err != nil || got != e {
			t.Fatalf("%v: %v, %v", e, got, err)
		}
		if got, err := gate.ParseSessionID(s.String()); err != nil || got != s {
			t.Fatalf("%v: %v, %v", s, got, err)
		}
		if _, err := gate.ParseEventID(s.String()); err == nil {
			t.Fatalf("%v is no event", s)
		}
	})
	good := gate.NewEventID([10]byte{1}).String()
	for _, bad := range []string{"", "e", good[:16], good + "0", "E" + good[1:], good[:16] + "i", good[:16] + "\n", good[:16] + "A", "../../../../../../.."} {
		if _, err := gate.ParseEventID(bad); err == nil {
			t.Errorf("%q is an event", bad)
		}
	}
}
