"""Large conversations: the template renders each several times, and the tokenizer reads them."""

import threading

import grpc
import server

FLAGS = ["--ttft-ms", "0", "--max-prompt-tokens", "10000000"]
MODEL = "chat"
SHORT = {"chats": 8, "megabytes": 2, "rounds": 1}
FULL = {"chats": 8, "megabytes": 15, "rounds": 2}


def attack(address, chats, megabytes, rounds):
    inference = server.protocol("inference_pb2")
    stub_of = server.protocol("inference_pb2_grpc").InferenceStub
    turn = "She said that the evening would be cold. " * 25
    turns = (megabytes << 20) // (len(turn) + 20)
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": turn}
                for i in range(turns - 1 + turns % 2)]
    request = inference.TokenizeRequest(messages={"messages": messages})
    codes = []

    def ask(stub):
        try:
            stub.Tokenize(request, timeout=60)
            codes.append("OK")
        except grpc.RpcError as error:
            codes.append(error.code().name)

    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        stub = stub_of(channel)
        for _ in range(rounds):
            threads = [threading.Thread(target=ask, args=(stub,)) for _ in range(chats)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return f"{len(codes)} chats of {len(messages)} messages: {sorted(set(codes))}"


def check(result, size):
    yield from result.too_slow()
    yield from result.refusals()
