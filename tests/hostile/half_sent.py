"""Messages without their last byte, on many streams."""

import time

import http2

FLAGS = ["--request-memory", "128MB"]
QUOTA = 128 << 20
SHORT = {"messages": 24, "megabytes": 16, "hold_seconds": 1}
FULL = {"messages": 64, "megabytes": 16, "hold_seconds": 5}


def attack(address, messages, megabytes, hold_seconds):
    size = (megabytes << 20) - 1000
    body = http2.message_head(size) + bytes(size - 1)
    connections, sent = [], 0
    for _ in range(messages):
        connection = http2.Connection(address, "127.0.0.2", timeout=2)
        connections.append(connection)
        try:
            stream = connection.open_stream("/recurve.v1.Inference/Generate")
            sent += connection.send(stream, body)
        except OSError:
            pass  # the server closed it
    time.sleep(hold_seconds)
    for connection in connections:
        connection.close()
    return f"{sent} of {messages} messages of {size} bytes were accepted without the last byte"


def check(result, size):
    # A message may be in memory twice while its parts are joined.
    if result.grown() > QUOTA + 64e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under {QUOTA / 1e6 + 64:.0f}"
    yield from result.too_slow()
