package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// webSocket [flags] URL sends messages one at a time and waits for each to come back. Success is all of them.
func webSocket(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("ws", flag.ContinueOnError)
	n := fs.Int("n", 3, "messages")
	size := fs.Int("size", 100, "bytes in each")
	hold := fs.Duration("hold", 0, "how long to stay silent before the last")
	first := fs.Bool("first", false, "the server speaks first")
	var hs headers
	fs.Var(&hs, "H", "a header, repeatable")
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return usage("ws [flags] URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+*hold)
	defer cancel()
	o := &websocket.DialOptions{HTTPHeader: http.Header{}, HTTPClient: client(1, "")}
	for _, h := range hs {
		name, value, _ := strings.Cut(h, ":")
		o.HTTPHeader.Add(name, strings.TrimSpace(value))
	}
	data := map[string]any{}
	c, resp, err := websocket.Dial(ctx, fs.Arg(0), o)
	if resp != nil {
		data["status"] = resp.StatusCode
	}
	if err != nil {
		return data, err
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(32 << 20)
	if *first {
		_, b, err := c.Read(ctx)
		if err != nil {
			return data, err
		}
		data["first"] = string(b)
	}
	var worst time.Duration
	for i := range *n {
		if i == *n-1 && *hold > 0 {
			time.Sleep(*hold)
		}
		msg := []byte(strings.Repeat(strconv.Itoa(i%10), *size))
		start := time.Now()
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			return data, err
		}
		_, b, err := c.Read(ctx)
		if err != nil {
			return data, err
		}
		if string(b) != string(msg) {
			return data, errors.New("a message came back changed")
		}
		worst = max(worst, time.Since(start))
	}
	data["worst_us"], data["messages"] = worst.Microseconds(), *n
	return data, c.Close(websocket.StatusNormalClosure, "")
}

// bytesCodec is the kit's codec, spelled again so that the probe does not link the kit.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}
func (bytesCodec) Name() string { return "bytes" }

// grpcBidi HOST:PORT [N] sends N messages on one bidirectional stream, each when the one before came back, and checks the trailer.
func grpcBidi(args []string) (map[string]any, error) {
	if len(args) == 0 {
		return usage("grpc HOST:PORT [N]")
	}
	n := 5
	if len(args) > 1 {
		n, _ = strconv.Atoi(args[1])
	}
	conn, err := grpc.NewClient("passthrough:///"+args[0], grpc.WithTransportCredentials(credentials.NewTLS(nil)), grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "x-probe", "1"), time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/postern.test.Echo/Bidi")
	if err != nil {
		return nil, err
	}
	var worst time.Duration
	for i := range n {
		out := []byte(fmt.Sprintf("message %d", i))
		start := time.Now()
		if err := stream.SendMsg(&out); err != nil {
			return nil, err
		}
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return nil, err
		}
		if string(in) != string(out) {
			return nil, errors.New("a message came back changed")
		}
		worst = max(worst, time.Since(start))
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var in []byte
	if err := stream.RecvMsg(&in); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("after the last message: %w", err)
	}
	count := strings.Join(stream.Trailer().Get("x-count"), ",")
	if count != strconv.Itoa(n) {
		return nil, fmt.Errorf("the trailer x-count is %q, want %d", count, n)
	}
	return map[string]any{"messages": n, "worst_us": worst.Microseconds()}, nil
}

// events [-H HEADER]… URL reads a stream of kit events and measures how long each took to arrive.
func events(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("sse", flag.ContinueOnError)
	version := fs.Int("v", 0, "HTTP version")
	var hs headers
	fs.Var(&hs, "H", "a header, repeatable")
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return usage("sse [flags] URL")
	}
	r, err := http.NewRequest(http.MethodGet, fs.Arg(0), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range hs {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Add(name, strings.TrimSpace(value))
	}
	resp, err := client(*version, "").Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var late []int64
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		now := time.Now().UnixNano()
		sent, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		late = append(late, (now-sent)/1000)
	}
	if len(late) == 0 {
		return map[string]any{"status": resp.StatusCode}, errors.New("no event arrived")
	}
	slices.Sort(late)
	return map[string]any{"events": len(late), "p50_us": late[len(late)/2], "p99_us": late[len(late)*99/100], "max_us": late[len(late)-1], "proto": resp.Proto}, nil
}

// get URL reads a body of any size and says how large it was.
func get(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("get URL")
	}
	start := time.Now()
	resp, err := client(0, "").Get(args[0])
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	return map[string]any{"status": resp.StatusCode, "bytes": n, "ms": time.Since(start).Milliseconds()}, err
}

// put URL N sends N bytes without saying how many there will be.
func put(args []string) (map[string]any, error) {
	if len(args) != 2 {
		return usage("put URL N")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodPost, args[0], io.LimitReader(endless{}, n))
	if err != nil {
		return nil, err
	}
	r.ContentLength = -1
	start := time.Now()
	resp, err := client(0, "").Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return map[string]any{"status": resp.StatusCode, "reply": string(b), "ms": time.Since(start).Milliseconds()}, err
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// load [flags] URL makes many requests and counts the answers that are not 200. Success is none.
func load(args []string) (map[string]any, error) {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	n := fs.Int64("n", 1000, "requests")
	streams := fs.Int("c", 16, "at once")
	version := fs.Int("v", 0, "HTTP version")
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return usage("load [flags] URL")
	}
	c := client(*version, "")
	var left, bad atomic.Int64
	left.Store(*n)
	var mu sync.Mutex
	statuses := map[string]int{}
	var all sync.WaitGroup
	start := time.Now()
	for range *streams {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				what := once(c, fs.Arg(0))
				if what != "200" {
					bad.Add(1)
				}
				mu.Lock()
				statuses[what]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	data := map[string]any{"statuses": statuses, "ms": time.Since(start).Milliseconds()}
	if bad.Load() > 0 {
		return data, fmt.Errorf("%d of %d failed", bad.Load(), *n)
	}
	return data, nil
}

func once(c *http.Client, url string) string {
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err.Error()
	}
	return strconv.Itoa(resp.StatusCode)
}
