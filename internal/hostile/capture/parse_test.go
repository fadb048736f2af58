package capture

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

func TestControlMessageNamesTheAddressItWasMadeFor(t *testing.T) {
	for _, a := range []netip.Addr{netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("2620:fe::fe"), netip.MustParseAddr("::1")} {
		b := pktinfo(nil, a)
		if a.Is4() { // the kernel reports the destination in the last field, and is told the source in the one before
			copy(b[unix.CmsgLen(0)+8:], b[unix.CmsgLen(0)+4:unix.CmsgLen(0)+8])
		}
		if got, ok := askedAddr(b); !ok || got != a {
			t.Errorf("%v became %v", a, got)
		}
	}
}

func TestManifestSurvivesItsJourney(t *testing.T) {
	want := manifest{Version: 1, Kinds: []kind{kindLinks, kindTCP4}, Baseline: []uint32{2, 3}, Notes: []string{"a note"}}
	f, err := want.seal()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a sealed manifest can be written")
	}
	if got, err := readManifest(f); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"kinds":["links","tcp4"],"baseline":[2],"notes":["a"]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1}{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b)
		if err == nil && (m.Version != manifestVersion || len(m.Notes) > maxNotes || len(m.Baseline) > maxBaseline) {
			t.Fatalf("accepted %+v", m)
		}
	})
}

// Whatever arrives on the tripwire's socket: no panic, and a new link among whole messages is always seen.
func FuzzLinkMessages(f *testing.F) {
	newLink := func(index, flags uint32) []byte {
		b := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
		b = binary.NativeEndian.AppendUint16(b, unix.RTM_NEWLINK)
		b = append(b, make([]byte, 14)...)
		b = binary.NativeEndian.AppendUint32(b, index)
		b = binary.NativeEndian.AppendUint32(b, flags)
		return append(b, 0, 0, 0, 0)
	}
	f.Add(newLink(1, unix.IFF_LOOPBACK|unix.IFF_UP))
	f.Add(newLink(2, 0))
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	w := &LinkWatch{baseline: []uint32{7}}
	f.Fuzz(func(t *testing.T, b []byte) {
		w.tripped(b)
		if !w.tripped(append(newLink(2, 0), b...)) || !w.tripped(append(newLink(7, unix.IFF_UP), b...)) {
			t.Fatal("a new link was not seen")
		}
		if w.tripped(newLink(1, unix.IFF_LOOPBACK|unix.IFF_UP)) || w.tripped(newLink(7, 0)) {
			t.Fatal("an old link was taken for a new one")
		}
	})
}
