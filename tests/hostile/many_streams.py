"""Streams without end at the highest priority, on one connection, where there are no keys. The honest client
comes from the same address."""

import tenant

FLAGS = ["--slots", "16"]
SHORT = {"streams": 64, "seconds": 2}
FULL = {"streams": 64, "seconds": 30}


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once", priority=10,
                         stop={"max_tokens": 1_000_000, "ignore_eos": True})
    return f"{streams} streams without end, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
