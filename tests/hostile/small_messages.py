"""Messages of 16 MB that only have empty chat messages of two bytes, which take many times that when
parsed."""

import threading

import grpc
import server

FLAGS = ["--ttft-ms", "0"]
MODEL = "chat"
SHORT = {"requests": 4, "megabytes": 16, "rounds": 1}
FULL = {"requests": 8, "megabytes": 16, "rounds": 4}
MOST_GROWTH = 512e6  # --request-memory twice: received, and parsed


def varint(value):
    more = []
    while value > 127:
        more.append(value & 127 | 128)
        value >>= 7
    return bytes([*more, value])


def conversation(size):
    """A GenerateRequest with as many messages as fit."""
    field = server.protocol("inference_pb2").GenerateRequest(messages={}).SerializeToString()[:1]
    messages = b"\x0a\x00" * (size // 2)
    return field + varint(len(messages)) + messages


def attack(address, requests, megabytes, rounds):
    message = conversation((megabytes << 20) - 1000)
    codes = set()

    def ask(generate):
        try:
            list(generate(message))
            codes.add("OK")
        except grpc.RpcError as error:
            codes.add(error.code().name)

    with grpc.insecure_channel(address) as channel:
        generate = channel.unary_stream("/recurve.v1.Inference/Generate")
        for _ in range(rounds):
            threads = [threading.Thread(target=ask, args=(generate,)) for _ in range(requests)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return f"{rounds * requests} messages of {len(message)} bytes: {sorted(codes)}"


def check(result, size):
    if result.grown() > MOST_GROWTH:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under {MOST_GROWTH / 1e6:.0f}"
    yield from result.too_slow()
    yield from result.refusals()
