"""Frames that need a reply or have no effect: pings, settings, empty data, priorities."""

import http2

FLAGS = []
SHORT = {"frames": 20_000}
FULL = {"frames": 300_000}
AT_ONCE = 500
KINDS = {
    "pings": http2.frame(http2.PING, 0, 0, bytes(8)),
    "settings": http2.frame(http2.SETTINGS, 0, 0, bytes([0, 4, 0, 1, 0, 0])),
    "empty data": http2.frame(http2.DATA, 0, 1),
    "priorities": http2.frame(http2.PRIORITY, 0, 1, bytes(5)),
}


def attack(address, frames):
    sent = []
    for name, one in KINDS.items():
        def part(stream):
            first = b""
            if stream == 1:
                first = http2.frame(http2.HEADERS, http2.END_HEADERS, 1,
                                    http2.header_block("/recurve.v1.Inference/Generate"))
            return first + one * AT_ONCE, 2

        connections = http2.flood(address, "127.0.0.2", [part] * (frames // AT_ONCE))
        sent.append(f"{frames} {name} on {connections} connections")
    return "; ".join(sent)


def check(result, size):
    if result.grown() > 100e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under 100"
    yield from result.too_slow()
    yield from result.refusals()
