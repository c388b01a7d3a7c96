// A pass-through proxy on grpc-go: it forwards each call as bytes and decodes no message.
//
//	goproxy LISTEN BACKEND
package main

import (
	"context"
	"io"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// The largest message in bytes, as in the kubelet's client.
const maxMessage = 16 << 20

var stream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// raw is a codec that passes messages without decoding them.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) (mem.BufferSlice, error) {
	return *message.(*mem.BufferSlice), nil
}

func (raw) Unmarshal(data mem.BufferSlice, message any) error {
	data.Ref()
	*message.(*mem.BufferSlice) = data
	return nil
}

func main() {
	backend, err := grpc.NewClient("unix:"+os.Args[2],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	forward := func(_ any, server grpc.ServerStream) error { return forward(backend, server) }
	server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.UnknownServiceHandler(forward))
	log.Fatal(server.Serve(listener))
}

// forward sends the client's messages to the backend and the backend's replies to the client.
func forward(backend *grpc.ClientConn, server grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(server)
	headers, _ := metadata.FromIncomingContext(server.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(server.Context(), headers))
	defer cancel()
	client, err := backend.NewStream(ctx, stream, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var message mem.BufferSlice
			if err := server.RecvMsg(&message); err != nil {
				client.CloseSend()
				return
			}
			if client.SendMsg(&message) != nil {
				return
			}
		}
	}()
	for {
		var message mem.BufferSlice
		err := client.RecvMsg(&message)
		if err != nil {
			server.SetTrailer(client.Trailer())
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := server.SendMsg(&message); err != nil {
			return err
		}
	}
}
