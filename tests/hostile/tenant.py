"""Requests of an attacker on many streams of one connection, with its key if it has one."""

import itertools
import os
import threading
import time

import grpc
import server

TENANTS = ("honest", "attacker")


def flood(address, streams, seconds, each=None, **fields):
    """Runs so many concurrent requests for so long; each is repeated when it ends. Returns the number of
    ends by code. `each`: for a stream's number, an iterator of further fields of its requests."""
    inference = server.protocol("inference_pb2")
    stub_of = server.protocol("inference_pb2_grpc").InferenceStub
    key = os.environ["RECURVE_KEY"]
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    end, codes, lock = time.monotonic() + seconds, {}, threading.Lock()

    def run(stub, number):
        more_fields = each(number) if each else itertools.repeat({})
        while time.monotonic() < end:
            code = grpc.StatusCode.OK
            request = inference.GenerateRequest(**fields, **next(more_fields))
            call = stub.Generate(request, metadata=metadata, timeout=max(0.1, end - time.monotonic()))
            try:
                for _ in call:
                    pass
            except grpc.RpcError as error:
                code = error.code()
            with lock:
                codes[code.name] = codes.get(code.name, 0) + 1
            if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
                time.sleep(0.05)

    with grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        threads = [threading.Thread(target=run, args=(stub, number)) for number in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return codes
