package canary

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

func TestFindsEverySpellingWhereverItStands(t *testing.T) {
	part := rand.Text() + rand.Text()
	set, err := New([]byte("salt"), map[string]string{"key": part})
	if err != nil {
		t.Fatal(err)
	}
	wire, err := set.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if set, err = Unmarshal(wire); err != nil {
		t.Fatal(err)
	}
	if hits, _ := set.Scan(strings.NewReader(string(wire))); len(hits) > 0 {
		t.Fatalf("the set finds itself: %v", hits)
	}
	var wide []byte
	for _, u := range utf16.Encode([]rune(part)) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	back := []byte(part)
	slices.Reverse(back)
	quoted, _ := json.Marshal(part)
	spelled := map[string]string{
		"raw": part, "json": string(quoted), "query": url.QueryEscape(part), "hex": hex.EncodeToString([]byte(part)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(part))),
		"utf-16": string(wide), "reversed": string(back), "a piece": part[7 : 7+Window],
		"base64 of basic auth": base64.StdEncoding.EncodeToString([]byte("x-access-token:" + part)),
		"base64 + 1":           base64.StdEncoding.EncodeToString([]byte("u" + part)), "base64 + 2": base64.URLEncoding.EncodeToString([]byte("us" + part + "tail")),
	}
	for name, text := range spelled {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				before := rapid.StringN(0, 40, 300).Draw(rt, "before")
				after := rapid.StringN(0, 40, 300).Draw(rt, "after")
				hits, err := set.Scan(strings.NewReader(before + text + after))
				if err != nil || len(hits) == 0 {
					rt.Fatalf("not found between %q and %q: %v", before, after, err)
				}
			})
		})
	}
}

func TestFindsNothingWhereNothingIs(t *testing.T) {
	part := rand.Text() + rand.Text()
	set, err := New([]byte("salt"), map[string]string{"key": part})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for range 20000 {
		b.WriteString(rand.Text())
	}
	b.WriteString(part[:Window-1])
	hits, err := set.Scan(strings.NewReader(b.String()))
	if err != nil || len(hits) > 0 {
		t.Fatalf("found %v, %v", hits, err)
	}
	if _, err := New(nil, map[string]string{"short": "elevenbytes"}); err == nil {
		t.Fatal("a part too short to search for was accepted")
	}
}
