package ca

import (
	"container/list"
	"crypto/tls"
	"sync"
	"time"

	"postern/internal/core/gate"
)

// cache keeps a bounded number of leaves, least recently used first out.
type cache struct {
	max int

	mu    sync.Mutex
	byKey map[gate.Host]*list.Element
	order *list.List // of *kept, most recently used first
}

type kept struct {
	host  gate.Host
	leaf  *tls.Certificate
	until time.Time // when it is to be minted again
}

func newCache(most int) *cache {
	return &cache{max: most, byKey: map[gate.Host]*list.Element{}, order: list.New()}
}

// get is the leaf of h if there is one that is good at now. The clock may have jumped either way since it was minted.
func (c *cache) get(h gate.Host, now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[h]
	if e == nil {
		return nil
	}
	k := e.Value.(*kept)
	if !now.Before(k.until) || now.Before(k.leaf.Leaf.NotBefore) {
		return nil
	}
	c.order.MoveToFront(e)
	return k.leaf
}

func (c *cache) put(h gate.Host, leaf *tls.Certificate, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[h]; e != nil {
		e.Value = &kept{h, leaf, until}
		c.order.MoveToFront(e)
		return
	}
	c.byKey[h] = c.order.PushFront(&kept{h, leaf, until})
	if c.order.Len() > c.max {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.byKey, oldest.Value.(*kept).host)
	}
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}
