"""Compressed messages of at most a megabyte that expand to hundreds."""

import zlib

import http2

FLAGS = []
SHORT = {"bombs": 4, "inflated_megabytes": 256}
FULL = {"bombs": 16, "inflated_megabytes": 1024}


def bomb(megabytes):
    """A gzip stream of so many megabytes of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()


def attack(address, bombs, inflated_megabytes):
    body = bomb(inflated_megabytes)
    body = http2.message_head(len(body), compressed=True) + body
    for _ in range(bombs):
        connection = http2.Connection(address, "127.0.0.2")
        stream = connection.open_stream("/recurve.v1.Inference/Generate", grpc_encoding="gzip")
        connection.send(stream, body, end=True)
        while stream not in connection.ended and connection.goaway is None and connection.read():
            pass
        connection.close()
    return f"{bombs} messages of {len(body)} bytes"


def check(result, size):
    if result.grown() > 64e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under 64"
