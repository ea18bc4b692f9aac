"""KServe streams cancelled after different numbers of responses, so that requests end while others are
written."""

import concurrent.futures
import time

import grpc
import server

FLAGS = ["--ttft-ms", "0"]
SHORT = {"streams": 6, "seconds": 3}
FULL = {"streams": 16, "seconds": 60}

REQUESTS = 8  # per stream


def attack(address, streams, seconds):
    messages = server.protocol("inference_pb2", "kserve.v2")
    stub_of = server.protocol("inference_pb2_grpc", "kserve.v2").GRPCInferenceServiceStub
    until = time.monotonic() + seconds

    def request(number):
        flag = messages.ModelInferRequest.InferInputTensor(name="stream", datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(True)
        text = messages.ModelInferRequest.InferInputTensor(name="text_input", datatype="BYTES", shape=[1])
        text.contents.bytes_contents.append(b"Call me")
        asked = messages.ModelInferRequest(model_name=server.MODEL.name, id=str(number), inputs=[text, flag])
        asked.parameters["max_tokens"].int64_param = 4
        return asked

    def cancel_streams():
        cancelled = 0
        with grpc.insecure_channel(address) as channel:
            stub = stub_of(channel)
            while time.monotonic() < until:
                responses = stub.ModelStreamInfer(request(n) for n in range(REQUESTS))
                for _ in range(cancelled % (4 * REQUESTS)):
                    next(responses, None)
                responses.cancel()
                cancelled += 1
        return cancelled

    with concurrent.futures.ThreadPoolExecutor(streams) as threads:
        cancelled = [threads.submit(cancel_streams) for _ in range(streams)]
    return f"{sum(one.result() for one in cancelled)} streams"


def check(result, size):
    yield from result.refusals()
