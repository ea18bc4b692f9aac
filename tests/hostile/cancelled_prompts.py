"""Long prompts whose calls are cancelled at once: the server must not work on them."""

import time

import grpc
import server

FLAGS = ["--ttft-ms", "0"]
SHORT = {"prompts": 8, "megabytes": 16, "rounds": 1}
FULL = {"prompts": 15, "megabytes": 16, "rounds": 8}


def attack(address, prompts, megabytes, rounds):
    inference = server.protocol("inference_pb2")
    stub_of = server.protocol("inference_pb2_grpc").InferenceStub
    text = "".join(f"{n} " for n in range(1000, 1_000_000))
    text = (text * (1 + (megabytes << 20) // len(text)))[:(megabytes << 20) - 1000]
    request = inference.GenerateRequest(text=text, stop={"max_tokens": 1})
    with grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        for _ in range(rounds):
            calls = [stub.Generate(request) for _ in range(prompts)]
            time.sleep(1)  # while they are sent
            for call in calls:
                call.cancel()
            time.sleep(1)
    return f"{rounds * prompts} prompts of {len(text)} bytes"


def check(result, size):
    yield from result.too_slow()
    yield from result.refusals()
