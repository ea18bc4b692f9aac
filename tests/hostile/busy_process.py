"""No attack: a process of the same machine that is busy, as every attacker here is too, and leaves the
server alone. What the honest client notices beside it is what the attacks are compared with."""

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
