"""Roles and keys, from outside: a server with keys, and curl, grpcio with code generated from the protos, and
the command line. ctest runs this with RECURVE_BIN set to the folder of recurve-server;
by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/access.py
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

grpc = pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, ROOT, Server, new_key, wait_for_output  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/clients_of_others/tls"))
from certificates import Authority  # noqa: E402

# Every rpc, and who may call it: "all" needs no key. An rpc without a row fails the test.
ROLES = ("none", "user", "observer", "admin")
WHO = {
    "/recurve.v1.Inference/Generate": "user",
    "/recurve.v1.Inference/Score": "user",
    "/recurve.v1.Inference/Embed": "user",
    "/recurve.v1.Inference/Tokenize": "user",
    "/recurve.v1.Inference/Detokenize": "user",
    "/recurve.v1.Inference/Abort": "user",
    "/recurve.v1.Sessions/Open": "user",
    "/recurve.v1.Sessions/Get": "user",
    "/recurve.v1.Sessions/List": "user",
    "/recurve.v1.Sessions/Close": "user",
    "/recurve.v1.Sessions/Fork": "user",
    "/recurve.v1.Sessions/Mark": "user",
    "/recurve.v1.Sessions/Unmark": "user",
    "/recurve.v1.Sessions/Rewind": "user",
    "/recurve.v1.Sessions/Accept": "user",
    "/recurve.v1.Sessions/Export": "user",
    "/recurve.v1.Sessions/Import": "user",
    "/recurve.v1.Control/GetModelInfo": "user",
    "/recurve.v1.Control/ListModels": "user",
    "/recurve.v1.Control/GetServerInfo": "user",
    "/recurve.v1.Control/GetLoad": "observer",
    "/recurve.v1.Control/Drain": "admin",
    "/recurve.v1.Control/LoadModel": "admin",
    "/recurve.v1.Control/UnloadModel": "admin",
    "/inference.GRPCInferenceService/ServerLive": "none",
    "/inference.GRPCInferenceService/ServerReady": "none",
    "/inference.GRPCInferenceService/ModelReady": "none",
    "/inference.GRPCInferenceService/ServerMetadata": "user",
    "/inference.GRPCInferenceService/ModelMetadata": "user",
    "/inference.GRPCInferenceService/ModelConfig": "user",
    "/inference.GRPCInferenceService/ModelInfer": "user",
    "/inference.GRPCInferenceService/ModelStreamInfer": "user",
}
HTTP = {
    ("GET", "/health"): "none",
    ("GET", "/"): "none",
    ("GET", "/page/none"): "none",
    ("GET", "/v1/models"): "user",
    ("GET", "/version"): "user",
    ("GET", "/v1/models/none"): "user",
    ("GET", "/v1/sessions"): "user",
    ("POST", "/v1/sessions"): "user",
    ("GET", "/v1/sessions/none"): "user",
    ("DELETE", "/v1/sessions/none"): "user",
    ("POST", "/v1/sessions/none/fork"): "user",
    ("POST", "/v1/sessions/none/marks"): "user",
    ("DELETE", "/v1/sessions/none/marks/none"): "user",
    ("POST", "/v1/sessions/none/rewind"): "user",
    ("POST", "/v1/sessions/none/accept"): "user",
    ("GET", "/v1/sessions/none/state"): "user",
    ("PUT", "/v1/sessions/none/state"): "user",
    ("GET", "/v1/responses/none"): "user",
    ("DELETE", "/v1/responses/none"): "user",
    ("GET", "/v1/responses/none/input_items"): "user",
    ("POST", "/v1/responses/none/cancel"): "user",
    ("POST", "/v1/responses/input_tokens"): "user",
    ("GET", "/tokenizer_info"): "user",
    ("POST", "/detokenize"): "user",
    ("POST", "/v1/completions"): "user",
    ("POST", "/v1/chat/completions"): "user",
    ("POST", "/v1/embeddings"): "user",
    ("POST", "/v1/responses"): "user",
    ("POST", "/v1/messages"): "user",
    ("POST", "/v1/messages/count_tokens"): "user",
    ("POST", "/tokenize"): "user",
    ("GET", "/v1/load"): "observer",
    ("GET", "/metrics"): "observer",
}
REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {"none": None}
    for role in ROLES[1:]:
        made[role] = new_key(file, "alice", "--role", role)
    made["bob"] = new_key(file, "bob")
    made["old"] = new_key(file, "bob", "--expires", "2026-01-01")
    made["file"] = file
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory, keys):
    server = Server(tmp_path_factory.mktemp("server"), "--keys", keys["file"])
    yield server
    server.stop()
    check_log(server, keys)


def check_log(server, keys):
    """It has no secret and no hash."""
    log = server.log.read_text()
    for name, key in keys.items():
        if name not in ("none", "file"):
            assert key.split("_", 2)[2] not in log
    for hash in re.findall(r'"sha256": "(\w+)"', keys["file"].read_text()):
        assert hash not in log


@pytest.fixture(scope="module")
def rpcs(tmp_path_factory):
    """The rpcs of all protos, as protoc reads them."""
    out = tmp_path_factory.mktemp("protos") / "all"
    subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", f"--descriptor_set_out={out}"]
                   + [str(p) for p in sorted((ROOT / "proto").rglob("*.proto"))], check=True)
    from google.protobuf import descriptor_pb2
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return {f"/{file.package}.{service.name}/{method.name}" for file in files
            for service in file.service for method in service.method}


def test_every_rpc_checks_the_role(server, keys, rpcs):
    assert set(WHO) == rpcs
    for rpc, least in WHO.items():
        for role in ROLES:
            may = ROLES.index(role) >= ROLES.index(least)
            if rpc.endswith("Drain") and may:
                continue  # has a separate test
            code = server.call(rpc, keys[role])
            if may:
                assert code not in REFUSED, (rpc, role)
            else:
                stranger = role == "none"
                assert code == (grpc.StatusCode.UNAUTHENTICATED if stranger
                                else grpc.StatusCode.PERMISSION_DENIED), (rpc, role)


def test_every_route_checks_the_role(server, keys):
    text = "".join(path.read_text() for path in (ROOT / "server/http").rglob("*.cc"))
    routes = re.findall(r'\{verb::(\w+?)_?, "([^"]+)"', text)
    assert {(method.upper(), path.replace("*", "none")) for method, path in routes} == set(HTTP)
    for (method, path), least in HTTP.items():
        for role in ROLES:
            status, _ = server.curl(method, path, keys[role])
            if ROLES.index(role) >= ROLES.index(least):
                assert status not in (401, 403), (path, role)
            else:
                assert status == (401 if role == "none" else 403), (path, role)


def test_invalid_keys_are_refused(server, keys):
    good = keys["user"]
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    for key in ("x", wrong, good + "x", good[:-1], keys["old"], "rck_" + "0" * 12 + "_" + "A" * 43):
        assert server.call("/recurve.v1.Sessions/List", key) == grpc.StatusCode.UNAUTHENTICATED
        assert server.curl("GET", "/v1/models", key)[0] == 401
    assert server.curl("GET", "/v1/models", None, "-H", f"Authorization: Basic {good}")[0] == 401
    assert server.curl("GET", "/v1/models", None, "-H", f"authorization: bearer {good}")[0] == 200
    server.wait_for("event=audit what=authentication tenant=none key_id=\\w+ peer=127.0.0.1 result=expired_key")
    head = server.curl("GET", "/v1/models", None, "-i")[1]
    assert "WWW-Authenticate: Bearer" in head


def test_two_keys_are_refused(server, keys):
    """A proxy may have checked the other one."""
    both = [f"Bearer {keys['user']}", f"Bearer {keys['admin']}"]
    for pair in (both, both[::-1], [both[0], both[0]]):
        headers = [part for one in pair for part in ("-H", f"Authorization: {one}")]
        assert server.curl("GET", "/v1/models", None, *headers)[0] == 400
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/recurve.v1.Sessions/List")(
                b"", timeout=30, metadata=[("authorization", one) for one in pair])
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_health_needs_no_key_and_there_is_no_reflection(server):
    health = "/grpc.health.v1.Health/Check"
    with grpc.insecure_channel(server.address) as channel:
        assert channel.unary_unary(health)(b"", timeout=30) == b"\x08\x01"
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert server.call(reflection) == grpc.StatusCode.UNIMPLEMENTED


def test_the_process_has_dropped_its_privileges(server):
    proc = pathlib.Path(f"/proc/{server.process.pid}")
    assert re.search(r"NoNewPrivs:\s+1", (proc / "status").read_text())
    assert re.search(r"Max core file size\s+0\s+0", (proc / "limits").read_text())
    confined = re.search(r'event=sandbox what="?(.*?)"?$', server.log.read_text(), re.M)[1]
    filters = re.search(r"Seccomp:\s+(\d)", (proc / "status").read_text())[1]
    assert (filters == "2") == (confined.endswith("seccomp") and not confined.endswith("no seccomp"))


def test_the_sandbox_can_be_disabled(tmp_path):
    server = Server(tmp_path, "--sandbox", "off")
    try:
        assert "event=sandbox what=\"none: --sandbox off" in server.log.read_text()
        assert re.search(r"Seccomp:\s+0", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())
    finally:
        server.stop()


def test_the_other_clients_send_their_keys(server, keys):
    load = [BIN / "recurve-loadgen", "--server", server.address, "--streams", "1", "--warmup", "0",
            "--duration", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "RECURVE_KEY"}
    done = subprocess.run(load, env=environment, text=True, capture_output=True, timeout=60)
    assert done.returncode != 0 and "the key is missing" in done.stdout + done.stderr
    done = subprocess.run(load, env={**environment, "RECURVE_KEY": keys["user"]}, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_per_tenant(server, keys):
    server.recurve("session", "open", "diary", key=keys["user"])
    server.recurve("session", "open", "diary", key=keys["bob"])
    server.recurve("session", "open", "mine", key=keys["user"])
    mine = server.recurve("--json", "session", "list", key=keys["bob"]).stdout
    assert "diary" in mine and "mine" not in mine
    # Errors for a name of another tenant and for an unknown name are the same.
    foreign = server.recurve("session", "get", "mine", key=keys["bob"], check=False)
    missing = server.recurve("session", "get", "none", key=keys["bob"], check=False)
    assert foreign.returncode == missing.returncode == 1
    assert foreign.stderr.replace("mine", "none") == missing.stderr
    other = server.curl("GET", "/v1/sessions/mine", keys["bob"])
    assert other[0] == 404
    server.recurve("session", "close", "diary", key=keys["bob"])
    server.recurve("session", "get", "diary", key=keys["user"])


def test_requests_are_aborted_by_their_tenant_or_an_administrator(server, keys):
    def running():
        return subprocess.Popen(
            [BIN / "recurve", "--server", server.address, "generate", "--prompt", "Once", "--request-id",
             "long", "--max-tokens", "1000000", "--ignore-eos"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "RECURVE_KEY": keys["user"]})

    for end, by in (("user", "user"), ("admin", "admin")):
        call = running()
        wait_for_output(call)
        refused = server.recurve("abort", "long", key=keys["bob"], check=False)
        assert refused.returncode == 1 and "NOT_FOUND" in refused.stderr
        server.recurve("abort", "long", key=keys[by])
        _, errors = call.communicate(timeout=60)  # reads: a full pipe would stop the client
        assert call.returncode == 1 and "CANCELLED" in errors


def test_the_command_line_sends_its_key(server, keys, tmp_path):
    file = tmp_path / "key"
    file.write_text(keys["user"] + "\n")
    assert "prompt tokens" in server.recurve(
        "generate", "--prompt", "Once", "--max-tokens", "3", "--stats", "--key-file", file).stderr
    nothing = server.recurve("generate", "--prompt", "Once", check=False)
    assert nothing.returncode == 1
    assert "UNAUTHENTICATED" in nothing.stderr and "--key-file" in nothing.stderr
    broken = server.recurve("health", key="two words", check=False)
    assert broken.returncode == 2 and "two words" not in broken.stderr


def test_keys_are_added_and_removed_while_it_runs(tmp_path):
    file = tmp_path / "keys.json"
    first = new_key(file, "carol")
    server = Server(tmp_path, "--keys", file)

    def becomes(key, status):
        for _ in range(300):
            if server.curl("GET", "/v1/models", key)[0] == status:
                return True
            time.sleep(0.02)
        return False

    try:
        assert becomes(first, 200)
        second = new_key(file, "carol", "--expires", "1h")
        assert becomes(second, 200)
        subprocess.run([BIN / "recurve", "keys", "remove", "--file", file, first.split("_")[1]], check=True)
        assert becomes(first, 401) and becomes(second, 200)
        listed = subprocess.run([BIN / "recurve", "keys", "list", "--file", file], check=True, text=True,
                                capture_output=True).stdout
        assert second.split("_")[1] in listed and "carol" in listed and "user" in listed
        # With an unreadable file the previous keys remain valid.
        file.write_text("nothing")
        server.curl("GET", "/v1/models", second)
        for _ in range(300):
            if "event=keys_not_reloaded" in server.log.read_text():
                break
            server.curl("GET", "/v1/models", second)
            time.sleep(0.02)
        assert "event=keys_not_reloaded" in server.log.read_text()
        assert becomes(second, 200)
    finally:
        server.stop()


def test_operators_have_a_separate_listener(tmp_path, keys):
    server = Server(tmp_path, "--keys", keys["file"], "--admin", "127.0.0.1:0")
    server.wait_for("event=serving_admin")
    ports = dict(re.findall(r"event=(serving\w*) .* port=(\d+)", server.log.read_text()))
    admin = f"127.0.0.1:{ports['serving_admin']}"
    load, drain = "/recurve.v1.Control/GetLoad", "/recurve.v1.Control/Drain"
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    denied, stranger = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    try:
        assert server.call(load, keys["admin"]) == denied
        assert server.call(drain, keys["admin"]) == denied
        assert server.curl("GET", "/metrics", keys["admin"])[0] == 403
        assert server.call(load, keys["observer"], address=admin) == grpc.StatusCode.OK
        assert server.call(drain, None, address=admin) == stranger
        assert server.call(drain, keys["observer"], address=admin) == denied
        assert server.call(reflection, address=admin) != grpc.StatusCode.UNIMPLEMENTED
        assert server.call(reflection) == grpc.StatusCode.UNIMPLEMENTED
        assert server.call(drain, keys["admin"], address=admin) == grpc.StatusCode.OK
        assert server.process.wait(timeout=60) == 0
        log = server.log.read_text()
        assert re.search(r"event=audit what=drain tenant=alice key_id=\w+ peer=127.0.0.1 result=OK", log)
        assert "what=authorisation tenant=alice" in log
    finally:
        server.stop()


@pytest.mark.parametrize("flag", ["--listen", "--http", "--metrics", "--admin"])
def test_an_open_network_is_refused(tmp_path, keys, flag):
    """At once, before the model is read."""
    def started(*flags):
        return subprocess.run([BIN / "recurve-server", "--model", tmp_path / "none", flag, "0.0.0.0:0",
                               *(("--listen", "127.0.0.1:0") if flag != "--listen" else ()), *flags],
                              text=True, capture_output=True, timeout=60)

    for flags in ([], ["--keys", keys["file"]]):
        refused = started(*flags)
        assert refused.returncode == 1
        assert flag in refused.stderr and "--insecure-network" in refused.stderr
    allowed = started("--insecure-network")
    assert allowed.returncode == 1 and "--insecure-network" not in allowed.stderr


def test_metrics_and_audit_know_tenants(server, keys):
    server.recurve("generate", "--prompt", "Once", "--max-tokens", "3", "--ignore-eos", key=keys["bob"])
    server.recurve("session", "open", "audited\n", key=keys["bob"], check=False)
    server.recurve("session", "open", "audited", key=keys["bob"])
    server.recurve("session", "fork", "audited", "forked", key=keys["bob"])
    server.recurve("session", "close", "audited", key=keys["bob"])
    metrics = server.curl("GET", "/metrics", keys["observer"])[1]
    numbers = {name: float(value) for name, value in
               re.findall(r'recurve_tenant_(\w+)_total\{tenant="bob"\} (\S+)', metrics)}
    assert numbers["requests"] >= 1 and numbers["generated_tokens"] >= 3 and numbers["prompt_tokens"] >= 1
    lines = [line for line in server.log.read_text().splitlines() if "event=audit" in line]
    id = keys["bob"].split("_")[1]
    for what in ("session_open", "session_fork", "session_close"):
        assert any(f"what={what} tenant=bob key_id={id} peer=127.0.0.1 result=OK" in line for line in lines), what


def test_the_command_line_names_what_tls_needs(tmp_path):
    """Another name than that of the certificate, another authority, and no TLS."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    server = Server(tmp_path, *authority.sign(names="DNS:localhost").flags)
    try:
        def said(*flags):
            done = server.recurve(*flags, "health", check=False)
            assert done.returncode == 3, done
            return done.stderr

        wanted = "use a host name from the server's certificate, and give its CA with --tls-ca"
        assert wanted in said("--tls-ca", authority.ca)
        assert wanted in said("--tls-ca", other.ca)
        assert "if the server uses TLS, give --tls-ca FILE" in said()
        named = server.address.replace("127.0.0.1", "localhost")
        assert server.recurve("--server", named, "--tls-ca", authority.ca, "health").stdout == "SERVING\n"
    finally:
        server.stop()


def test_a_certificate_replaces_a_key(tmp_path):
    """By its subject, over gRPC and HTTP; an unlisted subject is unauthenticated."""
    authority = Authority(tmp_path)
    own, worker, other = authority.sign(), authority.sign("worker"), authority.sign("other")
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"certificates": [
        {"subject": "CN=worker", "tenant": "alice", "role": "observer"}]}))
    key = new_key(file, "bob")
    server = Server(tmp_path, "--keys", file, *own.flags, "--tls-client-ca", authority.ca)
    try:
        def call(certificate, rpc, key=None):
            credentials = grpc.ssl_channel_credentials(
                authority.ca.read_bytes(), certificate.key.read_bytes(), certificate.cert.read_bytes())
            metadata = (("authorization", f"Bearer {key}"),) if key else ()
            with grpc.secure_channel(server.address, credentials) as channel:
                answers = channel.stream_stream(rpc)(iter([b""]), metadata=metadata, timeout=30)
                try:
                    list(answers)
                except grpc.RpcError:
                    pass
                return answers.code()

        def curl(certificate):
            return subprocess.run(
                ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", authority.ca, "--cert",
                 certificate.cert, "--key", certificate.key, f"https://{server.url[7:]}/v1/load"],
                check=True, text=True, capture_output=True).stdout

        load, sessions = "/recurve.v1.Control/GetLoad", "/recurve.v1.Sessions/List"
        assert call(worker, load) == grpc.StatusCode.OK
        assert call(other, load) == grpc.StatusCode.UNAUTHENTICATED
        assert call(other, sessions, key) == grpc.StatusCode.OK
        # A key has precedence over the certificate, also a wrong one.
        assert call(worker, load, key) == grpc.StatusCode.PERMISSION_DENIED
        assert call(worker, load, "wrong") == grpc.StatusCode.UNAUTHENTICATED
        assert (curl(worker), curl(other)) == ("200", "401")
        # Removed from the file, it is refused.
        file.write_text(json.dumps({**json.loads(file.read_text()), "certificates": []}))
        while "event=keys_reloaded" not in server.log.read_text():  # a request triggers the check
            assert curl(worker) in ("200", "401")
        assert call(worker, load) == grpc.StatusCode.UNAUTHENTICATED and curl(worker) == "401"
        assert call(worker, sessions, key) == grpc.StatusCode.OK
    finally:
        server.stop()


def test_durable_sessions_belong_to_their_tenant_after_a_restart(tmp_path, keys):
    flags = ("--keys", keys["file"], "--state-dir", tmp_path / "states")
    server = Server(tmp_path, *flags)
    server.recurve("session", "open", "--durability", "local", "kept", key=keys["user"])
    server.recurve("generate", "--session", "kept", "--prompt", "Once", "--max-tokens", "2",
                   key=keys["user"])
    server.stop()
    server = Server(tmp_path, *flags)
    try:
        server.recurve("session", "get", "kept", key=keys["user"])
        foreign = server.recurve("session", "get", "kept", key=keys["bob"], check=False)
        assert foreign.returncode == 1 and "NOT_FOUND" in foreign.stderr
    finally:
        server.stop()
