"""Messages without their last byte and without a key, on many streams of a few connections, also to the health
service, which needs no key. The honest client has a key; the first stranger has its address."""

import threading
import time

import http2

TENANTS = ("honest",)
METHODS = ("/recurve.v1.Inference/Generate", "/recurve.v1.Sessions/Open", "/grpc.health.v1.Health/Check")
FLAGS = []
SHORT = {"connections": 3, "streams": 24, "megabytes": 16, "seconds": 4}
FULL = {"connections": 6, "streams": 64, "megabytes": 16, "seconds": 30}
REQUEST_MEMORY = 256e6  # --request-memory


def attack(address, connections, streams, megabytes, seconds):
    size = (megabytes << 20) - 1000
    body = http2.message_head(size) + bytes(size - 1)
    end, lock, counts = time.monotonic() + seconds, threading.Lock(), {}

    def count(what):
        with lock:
            counts[what] = counts.get(what, 0) + 1

    def send(number):
        source = "127.0.0.1" if number == 0 else f"127.0.0.{number + 1}"
        while time.monotonic() < end:
            try:
                connection = http2.Connection(address, source, timeout=1)
                count("connections")
                for stream in range(streams):
                    if time.monotonic() > end or connection.goaway is not None:
                        break
                    method = METHODS[stream % len(METHODS)]
                    whole = connection.send(connection.open_stream(method), body)
                    count("taken" if whole else "refused")
                while time.monotonic() < end and connection.goaway is None and connection.read():
                    pass
                connection.close()
            except OSError:
                count("broken")
            time.sleep(0.02)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{connections} strangers at a time, half-sent messages of {size} bytes: {counts}"


def check(result, size):
    yield from result.refusals()
    yield from result.too_slow()
    if result.grown() > REQUEST_MEMORY + 64e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under {REQUEST_MEMORY / 1e6 + 64:.0f}"
