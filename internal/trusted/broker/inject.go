package broker

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/core/secret"
)

// Inject writes the credential that a permit's rule names into slot of r, and returns the receipt and what masks the answer.
//
// Whatever stood in the slot is replaced. r must be a copy that is seen by nobody but egress. The error is a *gate.Failure, and then r
// has not been given a credential.
func (b *Broker) Inject(ctx context.Context, p policy.Permit, slot policy.Slot, r *http.Request) (record.Receipt, *secret.Redactor, error) {
	if !slices.Contains(p.Injection().Slots, slot) {
		return record.Receipt{}, nil, &gate.Failure{Reason: gate.ReasonBug, Detail: "a slot that the rule does not declare"}
	}
	h, err := b.forPermit(ctx, p)
	if err != nil {
		return record.Receipt{}, nil, err
	}
	if h == nil {
		return record.Receipt{}, nil, &gate.Failure{Reason: gate.ReasonBug, Detail: "a rule that injects nothing"}
	}
	whole := slot.Kind == policy.BasicSlot && slot.User == "" && b.entries[p.Injection().Credential].spec.Kind == Basic
	user := ""
	if slot.Kind == policy.BasicSlot {
		user = slot.User
	}
	red := h.redactor(user)
	b.entries[p.Injection().Credential].tell(p.Host())
	err = h.value.Use(func(v []byte) error {
		switch slot.Kind {
		case policy.HeaderSlot:
			setHeader(r, slot.Name, slot.Prefix+string(v)+slot.Suffix)
		case policy.BasicSlot:
			if _, password, ok := bytes.Cut(v, []byte(":")); whole && (!ok || len(password) < secret.MinLen) {
				return errors.New(`the slot names no user, and the value is not "user:password"`)
			}
			if !whole {
				v = append([]byte(slot.User+":"), v...)
				defer clear(v)
			}
			setHeader(r, "Authorization", "Basic "+base64.StdEncoding.EncodeToString(v))
		case policy.QuerySlot:
			setQuery(r, slot.Name, string(v))
		default:
			return &gate.Failure{Reason: gate.ReasonBug, Detail: "a slot of no kind"}
		}
		return nil
	})
	if err != nil {
		return record.Receipt{}, nil, unavailable(p.Injection().Credential, err)
	}
	return record.Receipt{Credential: p.Injection().Credential, Fingerprint: h.fingerprint}, red, nil
}

// setHeader makes value the only one of a header, however its name was spelled, in header and trailer.
func setHeader(r *http.Request, name, value string) {
	for k := range r.Header {
		if strings.EqualFold(k, name) {
			delete(r.Header, k)
		}
	}
	for k := range r.Trailer {
		if strings.EqualFold(k, name) {
			delete(r.Trailer, k)
		}
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header[http.CanonicalHeaderKey(name)] = []string{value}
}

// setQuery makes value the only one of a query parameter. All other parameters keep their bytes and order.
func setQuery(r *http.Request, name, value string) {
	u := *r.URL
	var kept []string
	if u.RawQuery != "" {
		for pair := range strings.SplitSeq(u.RawQuery, "&") {
			key, _, _ := strings.Cut(pair, "=")
			// A key that does not decode is kept: it is no parameter of this name to any server.
			if k, err := url.QueryUnescape(key); err == nil && k == name {
				continue
			}
			kept = append(kept, pair)
		}
	}
	u.RawQuery = strings.Join(append(kept, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
	r.URL = &u
}
