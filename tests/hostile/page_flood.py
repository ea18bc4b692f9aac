"""A tenant whose requests need all pages that there are, again and again: prompts that take most of what a
session may have, and answers that take the rest. Its requests preempt each other, and make way for others',
with their slots too: the honest tenant has two requests at once.
In the control there are pages for all of them. The report also has the other tenant's times before the attack,
alone on the server: there a step has one sequence, and in the attack all slots, so that they are no bound on a CPU."""

import server
import tenant
from tenant import TENANTS  # noqa: F401

MODEL = server.ROOT / "weights_tools/demo/qwen35-books"
FLAGS = ["--slots", "8", "--kv-memory", "8MiB"]
CONTROL = ["--slots", "8", "--kv-memory", "64MiB"]
STREAMS = True
SHORT = {"streams": 16, "prompt": 1000, "seconds": 4}
FULL = {"streams": 16, "prompt": 1000, "seconds": 30}
STEP_SECONDS = 0.03  # of the server's --tpot-ms: what prompts may add to a step anyway
# Some steps until a sequence has made way, which pages_test counts, and that the client shares the cores.
FIRST_TOKEN_SECONDS = 0.25


def attack(address, streams, prompt, seconds):
    codes = tenant.flood(address, streams, seconds, ids={"ids": [100 + i % 1000 for i in range(prompt)]}, priority=10,
                         stop={"max_tokens": 4096 - prompt, "ignore_eos": True})
    return f"{streams} requests of up to 64 pages at once, with 128 pages, ended by {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
    yield from result.slower_than_control(2, FIRST_TOKEN_SECONDS, STEP_SECONDS)
