"""A tenant that offers ten times the server's capacity, with short requests."""

import tenant
from tenant import TENANTS  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 160, "seconds": 1}
FULL = {"streams": 160, "seconds": 30}


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once upon a time",
                         stop={"max_tokens": 64, "ignore_eos": True})
    return f"{streams} concurrent requests, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
