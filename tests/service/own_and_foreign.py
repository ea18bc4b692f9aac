"""For every rpc and route with a name of a session or request: a name of another tenant gets the same error
as an unknown name, in the same time. ctest runs this with RECURVE_BIN set to the folder of recurve-server."""

import base64
import itertools
import json
import pathlib
import subprocess
import sys
import time

import pytest

grpc = pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, ROOT, Server, new_key, wait_for_output  # noqa: E402

ROLES = ("user", "observer", "admin")

# The kind of name in each rpc's request, and the request, with NAME for the name; None: no name. "session" and
# "request" must exist, "makes" is created: a name of another tenant is free.
SESSION = {"name": "NAME"}
NAMES = {
    "/recurve.v1.Inference/Generate": ("session", {"session": "NAME", "text": "x", "stop": {"max_tokens": 1}}),
    "/recurve.v1.Inference/Abort": ("request", {"request_id": "NAME"}),
    "/recurve.v1.Inference/Score": None,
    "/recurve.v1.Inference/Embed": None,
    "/recurve.v1.Inference/Tokenize": None,
    "/recurve.v1.Inference/Detokenize": None,
    "/recurve.v1.Sessions/Open": ("makes", SESSION),
    "/recurve.v1.Sessions/Import": ("makes", None),  # with the state of an export
    "/recurve.v1.Sessions/List": ("list", {"prefix": "NAME"}),
    "/recurve.v1.Sessions/Get": ("session", SESSION),
    "/recurve.v1.Sessions/Fork": ("session", SESSION),
    "/recurve.v1.Sessions/Mark": ("session", {"name": "NAME", "mark": "here"}),
    "/recurve.v1.Sessions/Unmark": ("session", {"name": "NAME", "mark": "there"}),
    "/recurve.v1.Sessions/Rewind": ("session", {"name": "NAME", "mark": "there"}),
    "/recurve.v1.Sessions/Accept": ("session", {"name": "NAME"}),
    "/recurve.v1.Sessions/Export": ("session", SESSION),
    "/recurve.v1.Sessions/Close": ("session", SESSION),
    "/recurve.v1.Control/GetModelInfo": None,
    "/recurve.v1.Control/ListModels": None,
    "/recurve.v1.Control/LoadModel": None,
    "/recurve.v1.Control/UnloadModel": None,
    "/recurve.v1.Control/GetServerInfo": None,
    "/recurve.v1.Control/GetLoad": None,
    "/recurve.v1.Control/Drain": None,
    "/inference.GRPCInferenceService/ServerLive": None,
    "/inference.GRPCInferenceService/ServerReady": None,
    "/inference.GRPCInferenceService/ModelReady": None,
    "/inference.GRPCInferenceService/ServerMetadata": None,
    "/inference.GRPCInferenceService/ModelMetadata": None,
    "/inference.GRPCInferenceService/ModelConfig": None,
    "/inference.GRPCInferenceService/ModelInfer": ("session", "infer"),
    "/inference.GRPCInferenceService/ModelStreamInfer": ("session", "infer"),
}
# The same for HTTP, with the status for the owner. (method, path, body)
ROUTES = {
    ("GET", "/v1/sessions/NAME"): (None, 200),
    ("GET", "/v1/sessions/NAME/state"): (None, 200),
    ("POST", "/v1/sessions/NAME/fork"): ({}, 201),
    ("POST", "/v1/sessions/NAME/marks"): ({"mark": "here"}, 200),
    ("POST", "/v1/sessions/NAME/rewind"): ({"mark": "there"}, 200),
    ("POST", "/v1/sessions/NAME/accept"): ({}, 200),
    ("DELETE", "/v1/sessions/NAME/marks/there"): (None, 200),
    ("POST", "/v1/completions"): ({"prompt": "x", "max_tokens": 1, "session": "NAME"}, 200),
    ("DELETE", "/v1/sessions/NAME"): (None, 200),
}


class Asker:
    """One server, two tenants, and requests of any message. opened: further fields of each new session."""

    def __init__(self, folder, flags=(), opened=None, **environment):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        file = folder / "keys.json"
        self.own = new_key(file, "alice")
        self.others = {role: new_key(file, "bob", "--role", role) for role in ROLES}
        out = folder / "protos"
        subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", "--include_imports", f"--descriptor_set_out={out}"]
                       + [str(p) for p in sorted((ROOT / "proto").rglob("*.proto"))], check=True)
        pool, self.methods = descriptor_pool.DescriptorPool(), {}
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        for one in files:
            pool.Add(one)
        factory = message_factory.MessageFactory(pool)
        for one in files:
            for service in one.service:
                for method in service.method:
                    self.methods[f"/{one.package}.{service.name}/{method.name}"] = tuple(
                        factory.GetPrototype(pool.FindMessageTypeByName(kind.lstrip(".")))
                        for kind in (method.input_type, method.output_type))
        self.server = Server(folder, "--keys", file, "--chat-template", "plain", *flags, **environment)
        self.opened = opened or {}
        self.channel = grpc.insecure_channel(self.server.address)
        self.numbers = itertools.count(1)

    def close(self):
        self.channel.close()
        self.server.stop()

    def call(self, rpc, key, *fields):
        """Code, details and responses of a call with a stream of messages in JSON."""
        from google.protobuf import json_format
        request, answer = self.methods[rpc]
        sent = [json_format.ParseDict(one, request()).SerializeToString() for one in fields]
        answers, got = self.channel.stream_stream(rpc)(iter(sent), metadata=(("authorization", f"Bearer {key}"),),
                                                       timeout=30), []
        try:
            got = [answer.FromString(one) for one in answers]
        except grpc.RpcError:
            pass
        return answers.code(), answers.details(), got

    def session(self, key):
        """A session with content and a mark "there"."""
        name = f"of-alice-{next(self.numbers):03}"
        assert self.call("/recurve.v1.Sessions/Open", key, {"name": name, **self.opened})[0] == grpc.StatusCode.OK
        code, _, _ = self.call("/recurve.v1.Inference/Generate", key,
                               {"session": name, "text": "Once", "stop": {"max_tokens": 2, "ignore_eos": True}})
        assert code == grpc.StatusCode.OK
        assert self.call("/recurve.v1.Sessions/Mark", key, {"name": name, "mark": "there"})[0] == grpc.StatusCode.OK
        return name

    def unknown(self):
        return f"unknown--{next(self.numbers):03}"


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    made = Asker(tmp_path_factory.mktemp("asker"))
    yield made
    made.close()


def fields_of(row, name):
    if row == "infer":
        return {"model_name": "xlstm-books",
                "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1],
                            "contents": {"bytes_contents": ["eA=="]}}],
                "parameters": {"sequence_id": {"string_param": name}, "max_tokens": {"int64_param": 1}}}
    return json.loads(json.dumps(row).replace("NAME", name))


def told(answer, name):
    """The error without the name; KServe's streams have it in a message."""
    code, details, got = answer
    return code, [text.replace(name, "NAME") for text in [details, *(getattr(g, "error_message", "") for g in got)]]


def test_every_rpc_has_a_row(asker):
    assert set(NAMES) == set(asker.methods)


@pytest.mark.parametrize("rpc", [rpc for rpc, row in NAMES.items() if row and row[0] == "session"])
def test_anothers_session_is_unknown(asker, rpc):
    row = NAMES[rpc][1]
    name = asker.session(asker.own)
    for role in ROLES:
        key, unknown = asker.others[role], asker.unknown()
        foreign = told(asker.call(rpc, key, fields_of(row, name)), name)
        missing = told(asker.call(rpc, key, fields_of(row, unknown)), unknown)
        assert foreign == missing
        assert foreign[0] == grpc.StatusCode.NOT_FOUND or "no session" in "".join(foreign[1]), role
    own = asker.call(rpc, asker.own, fields_of(row, name))
    assert own[0] == grpc.StatusCode.OK and "no session" not in "".join(told(own, name)[1]), own


def test_anothers_name_is_free(asker):
    name = asker.session(asker.own)
    _, _, state = asker.call("/recurve.v1.Sessions/Export", asker.own, {"name": name})
    ready = [{"name": name, **asker.opened}, *({"data": base64.b64encode(chunk.data).decode()} for chunk in state)]
    for rpc, fields in (("/recurve.v1.Sessions/Open", [{"name": name, **asker.opened}]),
                        ("/recurve.v1.Sessions/Import", ready)):
        key = asker.others["user"]
        code, details, _ = asker.call(rpc, key, *fields)
        assert code == grpc.StatusCode.OK, details
        assert asker.call(rpc, asker.own, *fields)[0] == grpc.StatusCode.ALREADY_EXISTS
        assert asker.call("/recurve.v1.Sessions/Close", key, {"name": name})[0] == grpc.StatusCode.OK


def test_a_list_has_only_own_sessions(asker):
    name = asker.session(asker.own)
    for role in ROLES:
        assert len(asker.call("/recurve.v1.Sessions/List", asker.others[role], {"prefix": name})[2][0].sessions) == 0
    assert [s.name for s in asker.call("/recurve.v1.Sessions/List", asker.own, {"prefix": name})[2][0].sessions] == [name]


def running(asker):
    process = subprocess.Popen(
        [BIN / "recurve", "--server", asker.server.address, "generate", "--prompt", "Once", "--request-id", "going",
         "--max-tokens", "1000000", "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={"RECURVE_KEY": asker.own})
    wait_for_output(process)
    return process


def test_anothers_request_is_unknown_except_to_an_administrator(asker):
    abort = "/recurve.v1.Inference/Abort"
    process = running(asker)
    for role in ("user", "observer"):
        foreign = told(asker.call(abort, asker.others[role], {"request_id": "going"}), "going")
        missing = told(asker.call(abort, asker.others[role], {"request_id": "gone"}), "gone")
        assert foreign == missing and foreign[0] == grpc.StatusCode.NOT_FOUND
    assert process.poll() is None
    assert asker.call(abort, asker.others["admin"], {"request_id": "going"})[0] == grpc.StatusCode.OK
    process.communicate(timeout=60)
    assert "event=audit what=abort_of_other tenant=bob" in asker.server.log.read_text()
    process = running(asker)
    assert asker.call(abort, asker.own, {"request_id": "going"})[0] == grpc.StatusCode.OK
    process.communicate(timeout=60)


@pytest.mark.parametrize("method, path", ROUTES)
def test_anothers_session_is_unknown_over_http(asker, method, path):
    fields, status = ROUTES[method, path]
    name = asker.session(asker.own)

    def ask(key, of):
        more = [] if fields is None else ["-d", json.dumps(fields).replace("NAME", of)]
        got, body = asker.server.curl(method, path.replace("NAME", of), key, *more)
        return got, body.replace(of, "NAME")

    for role in ROLES:
        foreign, missing = ask(asker.others[role], name), ask(asker.others[role], asker.unknown())
        assert foreign == missing and foreign[0] == 404, role
    assert ask(asker.own, name)[0] == status


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_anothers_response_is_unknown(asker, method):
    status, body = asker.server.curl("POST", "/v1/responses", asker.own, "-d",
                                     json.dumps({"input": "Once", "max_output_tokens": 16, "store": True}))
    assert status == 200, body
    id = json.loads(body)["id"]
    missing = "".join(reversed(id))
    for role in ROLES:
        foreign = asker.server.curl(method, f"/v1/responses/{id}", asker.others[role])
        unknown = asker.server.curl(method, f"/v1/responses/{missing}", asker.others[role])
        assert foreign[0] == unknown[0] == 404
        assert foreign[1].replace(id, "") == unknown[1].replace(missing, "")
    assert asker.server.curl(method, f"/v1/responses/{id}", asker.own)[0] == 200


@pytest.mark.parametrize("rpc, field", [("/recurve.v1.Sessions/Get", "name"),
                                        ("/recurve.v1.Inference/Abort", "request_id")])
def test_times_do_not_distinguish_anothers_from_unknown(asker, rpc, field):
    """In turns, so that other load affects both. For indistinguishable calls, the share of pairs in which
    one is faster is a half, within 0.008 here: beyond 0.04 they can be distinguished."""
    rounds = 2500
    process = running(asker) if field == "request_id" else None
    foreign = asker.session(asker.own) if process is None else "going"
    missing = asker.unknown()[:len(foreign)].ljust(len(foreign), "x")
    request, _ = asker.methods[rpc]
    call = asker.channel.unary_unary(rpc)
    metadata = (("authorization", f"Bearer {asker.others['user']}"),)
    sent = {name: request(**{field: name}).SerializeToString() for name in (foreign, missing)}
    times = {foreign: [], missing: []}
    for round in range(rounds):
        for name in (foreign, missing) if round % 2 else (missing, foreign):
            began = time.perf_counter()
            with pytest.raises(grpc.RpcError):
                call(sent[name], metadata=metadata, timeout=30)
            times[name].append(time.perf_counter() - began)
    if process is not None:
        asker.call(rpc, asker.own, {field: foreign})
        process.communicate(timeout=60)
    ranked = sorted((seconds, name == foreign) for name, list in times.items() for seconds in list)
    ranks = sum(rank for rank, (_, is_foreign) in enumerate(ranked) if is_foreign)
    faster = (ranks - rounds * (rounds - 1) / 2) / rounds ** 2
    print(f"{rpc}: {faster:.4f}")
    assert abs(faster - 0.5) < 0.04
