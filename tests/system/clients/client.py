"""Calls criswitch with Python's gRPC: client.py TARGET. Makes each call twice on one connection, and prints the length
of each message that it receives."""

import sys

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
LIMIT_S = 120

with grpc.insecure_channel(sys.argv[1]) as channel:
    version = channel.unary_unary(SERVICE + "Version")
    pods = channel.unary_stream(SERVICE + "StreamPodSandboxes")
    for _ in range(2):
        print("Version", len(version(b"", timeout=LIMIT_S)))
        for message in pods(b"", timeout=LIMIT_S):
            print("StreamPodSandboxes", len(message))
