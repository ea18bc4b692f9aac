"""Scores of millions of ids, each sent in as few messages as possible."""

import os
import threading
import time

import grpc
import server
from long_http_prompts import bounds

FLAGS = []
TENANTS = ("honest", "attacker")
STREAMS = True
SHORT = {"streams": 2, "ids": 4_000_000, "seconds": 3}
FULL = {"streams": 2, "ids": 4_000_000, "seconds": 30}


def attack(address, streams, ids, seconds):
    inference = server.protocol("inference_pb2")
    stub_of = server.protocol("inference_pb2_grpc").InferenceStub
    metadata = (("authorization", f"Bearer {os.environ['RECURVE_KEY']}"),)
    piece = inference.ScoreRequest(ids={"ids": [100 + i % 100 for i in range(ids)]})
    end, codes, scored, lock = time.monotonic() + seconds, {}, [], threading.Lock()

    def ask(stub):
        while time.monotonic() < end:
            code, most = grpc.StatusCode.OK, 0
            try:
                for message in stub.Score(iter([piece]), metadata=metadata, timeout=max(0.1, end - time.monotonic())):
                    most = max(most, message.progress.scored_tokens)
            except grpc.RpcError as error:
                code = error.code()
            with lock:
                codes[code.name] = codes.get(code.name, 0) + 1
                scored.append(most)

    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        threads = [threading.Thread(target=ask, args=(stub_of(channel),)) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return f"{streams} streams of {ids} ids a message, {sum(scored)} scored, ended by {codes}"


def check(result, size):
    return bounds(result, size is FULL)
