package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// BytesCodec carries messages as they are, so that the service needs no generated code.
type BytesCodec struct{}

// Marshal spells a *[]byte.
func (BytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("bytes codec: %T", v)
	}
	return *b, nil
}

// Unmarshal fills a *[]byte.
func (BytesCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("bytes codec: %T", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}

// Name is the content subtype.
func (BytesCodec) Name() string { return "bytes" }

// Methods of the gRPC echo service.
const (
	GRPCUnary = "/postern.test.Echo/Unary"
	GRPCBidi  = "/postern.test.Echo/Bidi"
)

// GRPCEcho returns every message at once, in both directions of one stream, and ends with the trailer "x-count", the number of messages.
// Serve it with Net.Serve, which offers h2.
func GRPCEcho() http.Handler {
	s := grpc.NewServer(grpc.ForceServerCodec(BytesCodec{}))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "postern.test.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var b []byte
			if err := decode(&b); err != nil {
				return nil, err
			}
			return &b, grpc.SetTrailer(ctx, metadata.Pairs("x-count", "1"))
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Bidi", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			for n := 0; ; n++ {
				var b []byte
				err := stream.RecvMsg(&b)
				if errors.Is(err, io.EOF) {
					stream.SetTrailer(metadata.Pairs("x-count", fmt.Sprint(n)))
					return nil
				}
				if err != nil {
					return err
				}
				if err := stream.SendMsg(&b); err != nil {
					return err
				}
			}
		}}},
	}, struct{}{})
	return s
}
