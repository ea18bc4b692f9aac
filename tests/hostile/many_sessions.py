"""A tenant that opens sessions and closes none, with a limit in the keys file."""

import os
import time

import grpc
import server
from tenant import TENANTS  # noqa: F401

FLAGS = []
LIMITS = {"attacker": {"sessions": 100}}
SHORT = {"sessions": 3000, "hold_seconds": 0.2}
FULL = {"sessions": 16_000, "hold_seconds": 10}


def attack(address, sessions, hold_seconds):
    messages = server.protocol("sessions_pb2")
    stub_of = server.protocol("sessions_pb2_grpc").SessionsStub
    metadata = (("authorization", f"Bearer {os.environ['RECURVE_KEY']}"),)
    opened = 0
    with grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        calls = [stub.Open.future(messages.OpenSessionRequest(), metadata=metadata) for _ in range(sessions)]
        opened = sum(call.exception() is None for call in calls)
        time.sleep(hold_seconds)
    return f"{opened} of {sessions} sessions were opened"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
    if "100 of" not in result.summary:
        yield f"the limit was not applied: {result.summary}"
