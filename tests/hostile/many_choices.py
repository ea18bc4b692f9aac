"""A tenant whose requests have the largest number of choices."""

import tenant
from tenant import TENANTS  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 32, "seconds": 1}
FULL = {"streams": 32, "seconds": 30}


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once", priority=10, n=16,
                         stop={"max_tokens": 200, "ignore_eos": True})
    return f"{streams} streams of 16 choices, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
