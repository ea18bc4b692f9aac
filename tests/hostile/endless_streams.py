"""A tenant with endless streams at the highest priority it may use."""

import tenant
from tenant import TENANTS  # noqa: F401

FLAGS = []
SHORT = {"streams": 64, "seconds": 1}
FULL = {"streams": 64, "seconds": 30}


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once", priority=10,
                         stop={"max_tokens": 1_000_000, "ignore_eos": True})
    return f"{streams} endless streams, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
