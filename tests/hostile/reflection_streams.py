"""Thousands of reflection streams that stay open after a request."""

import time

import http2

FLAGS = []
SHORT = {"streams": 3000, "hold_seconds": 1}
FULL = {"streams": 3000, "hold_seconds": 10}
METHOD = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST_SERVICES = b"\x3a\x01*"
BY_CONNECTION = 500


def attack(address, streams, hold_seconds):
    question = http2.message_head(len(LIST_SERVICES)) + LIST_SERVICES
    connections = []
    for i in range(streams):
        if i % BY_CONNECTION == 0:
            connections.append(http2.Connection(address, "127.0.0.2"))
        stream = connections[-1].open_stream(METHOD)
        connections[-1].send(stream, question)
    time.sleep(hold_seconds)
    for connection in connections:
        connection.close()
    return f"{streams} streams on {len(connections)} connections"


def check(result, size):
    if result.usage_most["threads"] > 100:
        yield f"{result.usage_most['threads']} threads, wanted at most 100"
    yield from result.too_slow()
