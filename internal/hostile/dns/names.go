package dns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"

	"postern/internal/core/gate"
)

const (
	maxCapacity = 65_000
	defaultRest = 10 * time.Minute

	// Of the 512 /24 networks of 198.18.0.0/15, addresses ending in .0 and .255 stay unused: some clients take them for networks.
	perNet    = 254
	addresses = 512 * perNet
)

// Names gives every name an IPv4 and an IPv6 address, and knows the name of each. It is safe for concurrent use.
//
// Addresses belong to places in a table, of which at most half stand for a name. A place's IPv6 address holds its number and how
// often it changed hands, so no IPv6 address ever stands for two names. An IPv4 address stays with its place, and the place gets
// another name only after all of this:
//
//   - Capacity names were in use, and its name was the one neither asked for nor connected to for the longest time,
//   - that was for at least Rest, ten times as long as a client may remember the answer,
//   - then it rested, standing for nothing, until every place that was never used and every one that began to rest before it
//     had been given a name: more than Capacity other names.
//
// A connection's name is looked up once, when it arrives, so what happens to the address later does not touch it. And an address
// that misled a client after all is found out by the name in its TLS hello, which must agree: the harm is a refusal, never a
// credential in a wrong place.
type Names struct {
	now      func() time.Time
	capacity int
	places   int // most places; twice the capacity
	rest     time.Duration
	prefix   [8]byte // of the IPv6 addresses
	start    int     // the first place's number among the IPv4 addresses

	mu      sync.Mutex
	place   []place // guarded by mu, as everything below
	byName  map[gate.Host]int32
	live    chain // most recently used first
	resting chain // given up most recently first
}

// place is a pair of addresses and the name it stands for, none while it rests. It is always in one chain.
type place struct {
	host       gate.Host
	used       time.Time
	generation uint32
	prev, next int32
}

// chain is a doubly linked list of places by number. Numbers are stored plus one: the zero chain is empty.
type chain struct{ first, last int32 }

func newNames(c Config) (*Names, error) {
	if c.Capacity < 0 || c.Capacity > maxCapacity || c.Rest < 0 {
		return nil, errors.New("capacity or rest out of range")
	}
	n := &Names{now: c.Now, capacity: c.Capacity, rest: c.Rest, byName: map[gate.Host]int32{}}
	if n.now == nil {
		n.now = time.Now
	}
	if n.capacity == 0 {
		n.capacity = maxCapacity
	}
	if n.rest == 0 {
		n.rest = defaultRest
	}
	n.places = 2 * n.capacity
	n.prefix[0] = 0xfd
	copy(n.prefix[1:], c.Seed[:7])
	n.start = int(binary.BigEndian.Uint64(c.Seed[8:16]) % addresses)
	return n, nil
}

// Assign is the pair of addresses that stands for h, given out now if h had none. False: the table is full of names in use.
func (n *Names) Assign(h gate.Host) (v4, v6 netip.Addr, ok bool) {
	if h.IsZero() {
		return netip.Addr{}, netip.Addr{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	i, known := n.byName[h]
	if !known {
		if i, ok = n.take(now); !ok {
			return netip.Addr{}, netip.Addr{}, false
		}
		n.place[i].host = h
		n.byName[h] = i
		n.push(&n.live, i)
	}
	n.touch(i, now)
	return n.v4(i), n.v6(i), true
}

// Lookup is the name that an address stands for, and counts as a use of it. False: none, now.
func (n *Names) Lookup(a netip.Addr) (gate.Host, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i, ok := n.find(a.Unmap())
	if !ok || n.place[i].host.IsZero() {
		return gate.Host{}, false
	}
	n.touch(i, n.now())
	return n.place[i].host, true
}

// Len is how many names have addresses now.
func (n *Names) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byName)
}

// take finds a place that is in no chain: a new one, or the one that has rested longest.
func (n *Names) take(now time.Time) (int32, bool) {
	if len(n.byName) >= n.capacity {
		oldest := n.live.last - 1
		if now.Sub(n.place[oldest].used) < n.rest {
			return 0, false
		}
		n.unlink(&n.live, oldest)
		p := &n.place[oldest]
		delete(n.byName, p.host)
		p.host = gate.Host{}
		p.generation++
		n.push(&n.resting, oldest)
	}
	if len(n.place) < n.places {
		n.place = append(n.place, place{})
		return int32(len(n.place) - 1), true
	}
	i := n.resting.last - 1 // there is one: at most half of the places are live
	n.unlink(&n.resting, i)
	return i, true
}

func (n *Names) touch(i int32, now time.Time) {
	n.place[i].used = now
	if n.live.first != i+1 {
		n.unlink(&n.live, i)
		n.push(&n.live, i)
	}
}

func (n *Names) push(c *chain, i int32) {
	n.place[i].prev, n.place[i].next = 0, c.first
	if c.first != 0 {
		n.place[c.first-1].prev = i + 1
	} else {
		c.last = i + 1
	}
	c.first = i + 1
}

func (n *Names) unlink(c *chain, i int32) {
	p := n.place[i]
	if p.prev != 0 {
		n.place[p.prev-1].next = p.next
	} else {
		c.first = p.next
	}
	if p.next != 0 {
		n.place[p.next-1].prev = p.prev
	} else {
		c.last = p.prev
	}
}

// v4 spreads places over 198.18.0.1 to 198.19.255.254.
func (n *Names) v4(i int32) netip.Addr {
	k := (n.start + int(i)) % addresses
	net, host := k/perNet, k%perNet+1
	return netip.AddrFrom4([4]byte{198, byte(18 + net>>8), byte(net), byte(host)})
}

// v6 is the prefix, the generation in four bytes, and the place plus one in four.
func (n *Names) v6(i int32) netip.Addr {
	var a [16]byte
	copy(a[:], n.prefix[:])
	binary.BigEndian.PutUint32(a[8:], n.place[i].generation)
	binary.BigEndian.PutUint32(a[12:], uint32(i)+1)
	return netip.AddrFrom16(a)
}

// find is the place of an address, resting or not.
func (n *Names) find(a netip.Addr) (int32, bool) {
	if a.Is4() {
		b := a.As4()
		if b[0] != 198 || b[1]&^1 != 18 || b[3] == 0 || b[3] == 255 {
			return 0, false
		}
		k := (int(b[1]&1)<<8|int(b[2]))*perNet + int(b[3]) - 1
		i := (k - n.start + addresses) % addresses
		return int32(i), i < len(n.place)
	}
	b := a.As16()
	if !a.Is6() || [8]byte(b[:8]) != n.prefix || a.Zone() != "" {
		return 0, false
	}
	i := int64(binary.BigEndian.Uint32(b[12:])) - 1
	if i < 0 || i >= int64(len(n.place)) {
		return 0, false
	}
	return int32(i), n.place[i].generation == binary.BigEndian.Uint32(b[8:])
}
