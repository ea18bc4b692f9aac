"""No attack: a process that uses a core, as every attacker does, and does not use the server. The honest
client's latency with it is the baseline of the attacks."""

import time

FLAGS = []
SHORT = {"seconds": 1}
FULL = {"seconds": 15}


def attack(address, seconds):
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
    return f"{turns} turns of a loop"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
