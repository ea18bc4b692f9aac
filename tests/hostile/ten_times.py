"""A tenant that offers ten times what the server can do, of requests that end."""

import tenant
from tenant import TENANTS  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 160, "seconds": 1}
FULL = {"streams": 160, "seconds": 30}


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once upon a time",
                         stop={"max_tokens": 64, "ignore_eos": True})
    return f"{streams} requests under way, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
