"""The server with third-party clients: grpcio with code generated from the protos, a
client that only uses reflection, and h2load. ctest runs this with RECURVE_BIN set to the
folder of recurve-server; by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/other_clients.py
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "weights_tools/demo/xlstm-books"
BIN = pathlib.Path(os.environ["RECURVE_BIN"])

grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with open(log, "w") as out:
        server = subprocess.Popen(
            [BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--slots", "8",
             "--ttft-ms", "0"],
            stderr=out,
        )
    for _ in range(3000):
        found = re.search(r"event=serving.* port=(\d+)", log.read_text())
        if found or server.poll() is not None:
            break
        time.sleep(0.02)
    assert found, log.read_text()
    yield f"127.0.0.1:{found[1]}"
    server.terminate()
    assert server.wait() == 0, log.read_text()


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    """The modules that protoc generates."""
    out = tmp_path_factory.mktemp("generated")
    plugin = shutil.which("grpc_python_plugin")
    subprocess.run(
        ["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={out}", f"--grpc_out={out}",
         f"--plugin=protoc-gen-grpc={plugin}"]
        + [str(p) for p in sorted((ROOT / "proto").glob("recurve/v1/*.proto"))],
        check=True,
    )
    sys.path.insert(0, str(out))
    from recurve.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
    from recurve.v1 import sessions_pb2, sessions_pb2_grpc

    class Stubs:
        inference, inference_grpc = inference_pb2, inference_pb2_grpc
        sessions, sessions_grpc = sessions_pb2, sessions_pb2_grpc
        control, control_grpc = control_pb2, control_pb2_grpc

    return Stubs


def request(stubs, text, tokens, **fields):
    return stubs.inference.GenerateRequest(
        text=text, stop={"max_tokens": tokens, "ignore_eos": True}, sampling={"seed": 1}, **fields
    )


def ids_of(messages):
    return [i for m in messages if m.HasField("chunk") for i in m.chunk.ids]


def test_grpcio_streams_an_answer(address, stubs):
    with grpc.insecure_channel(address) as channel:
        messages = list(
            stubs.inference_grpc.InferenceStub(channel).Generate(request(stubs, "It was", 30)))
    assert messages[0].HasField("prompt")
    assert messages[-1].HasField("final")
    assert messages[-1].final.usage.generated_tokens == 30
    assert len(ids_of(messages)) == 30
    assert all(m.HasField("chunk") for m in messages[1:-1])


def test_grpcio_continues_a_session(address, stubs):
    with grpc.insecure_channel(address) as channel:
        inference = stubs.inference_grpc.InferenceStub(channel)
        sessions = stubs.sessions_grpc.SessionsStub(channel)
        sessions.Open(stubs.sessions.OpenSessionRequest(name="python"))
        first = ids_of(inference.Generate(request(stubs, "It was", 10, session="python")))
        fork = stubs.sessions.ForkSessionRequest(name="python", new_name="fork")
        assert sessions.Fork(fork).position == sessions.Get(
            stubs.sessions.GetSessionRequest(name="python")).position
        on = ids_of(inference.Generate(request(stubs, "", 10, session="python")))
        assert ids_of(inference.Generate(request(stubs, "", 10, session="fork"))) == on
        whole = ids_of(inference.Generate(request(stubs, "It was", 10)))
        assert whole == first
        for name in ("python", "fork"):
            sessions.Close(stubs.sessions.CloseSessionRequest(name=name))


def test_grpcio_gets_codes_and_messages(address, stubs):
    with grpc.insecure_channel(address) as channel:
        inference = stubs.inference_grpc.InferenceStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            list(inference.Generate(request(stubs, "It was", 10, session="unknown")))
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        assert "unknown" in error.value.details()
        with pytest.raises(grpc.RpcError) as error:
            list(inference.Generate(request(stubs, "It was", 10, priority=11)))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "[-10, 10]" in error.value.details()
        call = inference.Generate(request(stubs, "It was", 1000000))
        next(call)
        call.cancel()
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() == grpc.StatusCode.CANCELLED
        call = inference.Generate(request(stubs, "It was", 1000000), timeout=0.2)
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_client_with_only_reflection(address):
    """PyPI's grpcio-reflection, where it is installed: Debian has no such client."""
    database = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    from google.protobuf import descriptor_pool, message_factory

    with grpc.insecure_channel(address) as channel:
        reflected = database.ProtoReflectionDescriptorDatabase(channel)
        assert "recurve.v1.Inference" in reflected.get_services()
        pool = descriptor_pool.DescriptorPool(reflected)
        method = pool.FindServiceByName("recurve.v1.Inference").FindMethodByName("Generate")
        factory = message_factory.MessageFactory(pool)
        asked = factory.GetPrototype(method.input_type)
        answered = factory.GetPrototype(method.output_type)
        call = channel.unary_stream(
            "/recurve.v1.Inference/Generate",
            request_serializer=asked.SerializeToString,
            response_deserializer=answered.FromString,
        )
        messages = list(call(asked(text="It was", stop={"max_tokens": 5, "ignore_eos": True})))
        assert messages[-1].final.usage.generated_tokens == 5


def load_when_idle(control, stubs):
    """The server's load when nothing runs and every slot is free."""
    for _ in range(600):
        load = control.GetLoad(stubs.control.GetLoadRequest())
        if load.requests_running + load.requests_waiting == 0 and load.slots.free == load.slots.total:
            return load
        time.sleep(0.1)
    raise AssertionError(f"the server does not come to rest: {load}")


def test_h2load_gets_every_answer(address, stubs, tmp_path):
    if shutil.which("h2load") is None:
        pytest.skip("no h2load: apt-get install nghttp2-client")
    requests, tokens = 200, 16
    body = request(stubs, "It was", tokens).SerializeToString()
    data = tmp_path / "body"
    data.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
    with grpc.insecure_channel(address) as channel:
        control = stubs.control_grpc.ControlStub(channel)
        before = load_when_idle(control, stubs)
        result = subprocess.run(
            ["h2load", "-n", str(requests), "-c", "10", "-m", "4", "-d", data,
             "-H", "content-type: application/grpc", "-H", "te: trailers",
             f"http://{address}/recurve.v1.Inference/Generate"],
            capture_output=True, text=True, check=True,
        )
        after = load_when_idle(control, stubs)
    print(result.stdout)
    assert f"{requests} succeeded, 0 failed, 0 errored, 0 timeout" in result.stdout
    # h2load does not check grpc-status: use the server's count.
    assert after.generated_tokens - before.generated_tokens == requests * tokens
