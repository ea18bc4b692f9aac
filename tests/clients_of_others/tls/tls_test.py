"""TLS at every listener, with third-party clients: grpcio, Triton's client, Python's HTTP and ssl."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import xml.etree.ElementTree

import grpc
import pytest
import tritonclient.grpc as triton
import recurve
from recurve import Client
from recurve.v1 import control_pb2, inference_pb2

from conftest import ROOT
from server import BIN, Server

MODEL = ROOT / "weights_tools/demo/gla-books"


def serve(*flags):
    return Server(MODEL, "--name", "books", "--http", "127.0.0.1:0", *flags)


@pytest.fixture(scope="module")
def server(authority):
    with serve(*authority.sign().flags) as running:
        yield running


# All listeners, by the event of the log with their port.
LISTENERS = ("serving", "serving_http", "serving_metrics", "serving_admin")


@contextlib.contextmanager
def serve_at_all_listeners(*flags):
    """A server, and the address of each listener."""
    with serve("--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0", *flags) as running:
        def port(event):
            return next(filter(None, (re.search(rf"event={event} .*port=(\d+)", line) for line in running._log)), None)

        wait_for(lambda: all(map(port, LISTENERS)))
        yield running, {event: f"127.0.0.1:{port(event)[1]}" for event in LISTENERS}


@pytest.fixture(scope="module")
def listeners(authority):
    with serve_at_all_listeners(*authority.sign().flags) as (_, addresses):
        yield addresses


def read(path):
    return path.read_bytes()


def secure(address, authority, client=None):
    """A channel of grpcio's."""
    files = [None, None] if client is None else [read(client.key), read(client.cert)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(read(authority.ca), *files))


def generate(channel, tokens=20, timeout=60, prompt="It was"):
    """The ids of a greedy answer."""
    call = channel.unary_stream("/recurve.v1.Inference/Generate",
                                inference_pb2.GenerateRequest.SerializeToString,
                                inference_pb2.GenerateResponse.FromString)
    request = inference_pb2.GenerateRequest(
        text=prompt, stop={"max_tokens": tokens, "ignore_eos": True}, sampling={"temperature": 0})
    return [i for message in call(request, timeout=timeout) for i in message.chunk.ids]


def load(channel):
    call = channel.unary_unary("/recurve.v1.Control/GetLoad", control_pb2.GetLoadRequest.SerializeToString,
                               control_pb2.Load.FromString)
    return call(control_pb2.GetLoadRequest(), timeout=60)


def context_of(authority, client=None):
    context = ssl.create_default_context(cafile=authority.ca)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


@contextlib.contextmanager
def https(server, context):
    connection = http.client.HTTPSConnection(server.http_address, context=context, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def complete(connection, **fields):
    body = {"prompt": "It was", "max_tokens": 20, "temperature": 0, "ignore_eos": True, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def test_every_listener_speaks_tls(server, authority):
    with serve() as plain, Client(plain.address) as client:
        wanted = client.generate("It was", max_tokens=600, temperature=0, ignore_eos=True)
    with secure(server.address, authority) as channel:
        assert generate(channel, 600) == list(wanted.ids)
    with https(server, context_of(authority)) as connection:
        for _ in range(2):  # of one connection
            answer = json.loads(complete(connection, max_tokens=600).read())
            assert answer["choices"][0]["text"] == wanted.text
        streamed = complete(connection, max_tokens=600, stream=True).read().decode()
        events = [json.loads(line[6:]) for line in streamed.split("\n\n") if line and "[DONE]" not in line]
        assert "".join(event["choices"][0]["text"] for event in events) == wanted.text
    with triton.InferenceServerClient(server.address, ssl=True, root_certificates=str(authority.ca)) as client:
        assert client.is_model_ready("books")


def test_long_messages_come_through_whole(server, authority):
    text = "".join(f"{i} is as long as this. " for i in range(20_000))
    with secure(server.address, authority) as channel, https(server, context_of(authority)) as connection:
        def call(name, request, answer):
            unary = channel.unary_unary(f"/recurve.v1.Inference/{name}", type(request).SerializeToString,
                                        answer.FromString)
            return unary(request, timeout=60)

        ids = call("Tokenize", inference_pb2.TokenizeRequest(text=text, add_special_tokens=False),
                   inference_pb2.TokenizeResponse).ids
        assert len(ids) > 100_000
        assert call("Detokenize", inference_pb2.DetokenizeRequest(ids=ids),
                    inference_pb2.DetokenizeResponse).text == text
        response = complete(connection, prompt=text * 10, temperature=-1)
        assert response.status == 400 and b"temperature" in response.read()


def test_the_log_knows_who_asks(server, authority):
    with secure(server.address, authority) as channel:
        generate(channel)
    with https(server, context_of(authority)) as connection:
        complete(connection).read()
    wait_for(lambda: sum("peer=127.0.0.1 code=OK" in line for line in server._log) >= 2)


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come true")


def test_a_client_that_leaves_ends_its_request(server, authority):
    with secure(server.address, authority) as channel:
        with https(server, context_of(authority)) as connection:
            response = complete(connection, max_tokens=1_000_000, stream=True)
            response.read(100)
        wait_for(lambda: load(channel).requests_running == 0)


def test_a_client_that_does_not_trust_it_goes(server, stranger):
    with secure(server.address, stranger) as channel, pytest.raises(grpc.RpcError) as error:
        generate(channel, timeout=5)
    assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    with https(server, context_of(stranger)) as connection, pytest.raises(ssl.SSLCertVerificationError):
        complete(connection)


def test_another_name_than_the_server_has(authority):
    with serve(*authority.sign(names="DNS:elsewhere.example").flags) as other:
        with https(other, context_of(authority)) as connection, pytest.raises(ssl.SSLCertVerificationError):
            complete(connection)


def test_a_certificate_that_has_expired_is_no_clients(authority):
    """gRPC's and Python's own; the command line says what it wants."""
    with serve(*authority.sign(expired=True).flags) as old:
        with https(old, context_of(authority)) as connection, pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            complete(connection)
        with secure(old.address, authority) as channel, pytest.raises(grpc.RpcError) as error:
            generate(channel, timeout=2)
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        done = subprocess.run([BIN / "recurve", "--server", old.address, "--tls-ca", authority.ca, "health"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 3 and "SERVING" not in done.stdout


def handshake(address, context):
    """What was agreed on: version and protocol."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            wrapped.settimeout(30)
            return wrapped.version(), wrapped.selected_alpn_protocol()


def test_only_what_is_sound_is_agreed_on(server, authority):
    def context(offer=None, least=None, most=None, ciphers=None):
        made = context_of(authority)
        if ciphers:
            made.set_ciphers(ciphers)
        if least:
            made.minimum_version = least
        if most:
            made.maximum_version = most
        if offer:
            made.set_alpn_protocols(offer)
        return made

    version = ssl.TLSVersion
    assert handshake(server.address, context(["h2"])) == ("TLSv1.3", "h2")
    assert handshake(server.address, context(["http/1.1", "h2"]))[1] == "h2"
    assert handshake(server.http_address, context(["h2", "http/1.1"]))[1] == "http/1.1"
    assert handshake(server.address, context()) == ("TLSv1.3", None)
    assert handshake(server.address, context(most=version.TLSv1_2))[0] == "TLSv1.2"
    for refused in (
        context(["http/1.1"]),
        context(least=version.TLSv1, most=version.TLSv1_1, ciphers="ALL:@SECLEVEL=0"),
        context(most=version.TLSv1_2, ciphers="AES128-SHA256"),
        context(most=version.TLSv1_2, ciphers="ECDHE-ECDSA-AES128-SHA256"),
    ):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(server.address, refused)


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_scanner_finds_nothing_weak(listeners, listener, tmp_path):
    """sslscan tries every version and cipher that it knows."""
    report = tmp_path / "scan.xml"
    scanned = subprocess.run(["sslscan", f"--xml={report}", "--no-colour", listeners[listener]], check=True,
                             capture_output=True, text=True, timeout=120).stdout
    found = xml.etree.ElementTree.parse(report).getroot().find("ssltest")
    assert {(p.get("type"), p.get("version")) for p in found.iter("protocol") if p.get("enabled") == "1"} == {
        ("tls", "1.2"), ("tls", "1.3")}
    ciphers = [cipher.attrib for cipher in found.iter("cipher")]
    assert len(ciphers) >= 5
    for cipher in ciphers:
        assert cipher["strength"] in ("strong", "acceptable") and int(cipher["bits"]) >= 128, cipher
        assert "GCM" in cipher["cipher"] or "CHACHA20" in cipher["cipher"], cipher
    groups = [group.attrib for group in found.iter("group")]
    assert groups and all(int(group["bits"]) >= 128 for group in groups), groups
    assert all(h.get("vulnerable") == "0" for h in found.iter("heartbleed"))
    assert found.find("renegotiation").get("supported") == "0"
    assert "Server supports TLS Fallback SCSV" in scanned  # which its XML leaves out, or names otherwise
    assert found.find("compression") is None or found.find("compression").get("supported") == "0"


def test_what_is_no_tls_is_refused(server, authority):
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        generate(channel, timeout=2)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, os.urandom(5000)):
        with socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1])), timeout=30) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(noise)
                while peer.recv(4096):
                    pass
    wait_for(lambda: any("event=tls_handshake_failed" in line for line in server._log))
    with secure(server.address, authority) as channel:
        assert len(generate(channel)) == 20


def test_who_says_nothing_is_gone_after_a_while(server, authority):
    port = int(server.address.rsplit(":", 1)[1])
    began = time.monotonic()
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(100)]
    with secure(server.address, authority) as channel:
        assert len(generate(channel)) == 20  # at the same time
    for peer in silent:
        assert peer.recv(1) == b""
        peer.close()
    assert 9 < time.monotonic() - began < 25


def test_clients_may_have_to_show_a_certificate(authority, stranger):
    mine, theirs = authority.sign("me"), stranger.sign("them")
    old = authority.sign("me, once", expired=True)
    with serve(*authority.sign().flags, "--tls-client-ca", str(authority.ca)) as both:
        for client in (None, theirs, old):
            with secure(both.address, authority, client) as channel, pytest.raises(grpc.RpcError):
                generate(channel, timeout=2)
            with https(both, context_of(authority, client)) as connection:
                with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                    complete(connection)
        with secure(both.address, authority, mine) as channel:
            assert len(generate(channel)) == 20
        with https(both, context_of(authority, mine)) as connection:
            assert complete(connection).status == 200


def serial(address, context):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            return wrapped.getpeercert()["serialNumber"]


def test_certificates_are_replaced_while_it_runs(authority, tmp_path):
    first, second = authority.sign(), authority.sign()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(certificate):
        shutil.copy(certificate.cert, cert)
        shutil.copy(certificate.key, key)

    put(first)
    context = context_of(authority)
    with serve("--tls-cert", str(cert), "--tls-key", str(key)) as running:
        before = serial(running.http_address, context)
        with https(running, context) as kept, secure(running.address, authority) as channel:
            assert complete(kept).read()
            streaming = channel.unary_stream("/recurve.v1.Inference/Generate",
                                             inference_pb2.GenerateRequest.SerializeToString,
                                             inference_pb2.GenerateResponse.FromString)
            stream = streaming(inference_pb2.GenerateRequest(
                text="x", stop={"max_tokens": 1_000_000, "ignore_eos": True}))
            next(stream)
            put(second)
            wait_for(lambda: serial(running.http_address, context) != before)
            assert any("event=tls_reloaded" in line for line in running._log)
            for _ in range(20):
                next(stream)
            stream.cancel()
            assert complete(kept).status == 200  # by the connection of before
        after = serial(running.http_address, context)
        cert.write_text("nothing of use")
        wait_for(lambda: any("event=tls_not_reloaded" in line for line in running._log))
        assert serial(running.http_address, context) == after
        put(first)
        wait_for(lambda: serial(running.http_address, context) == before)


def answers(listener, address, authority, client):
    """Whether a listener answers a client with that certificate."""
    if listener in ("serving_http", "serving_metrics"):
        connection = http.client.HTTPSConnection(address, context=context_of(authority, client), timeout=30)
        try:
            connection.request("GET", "/metrics" if listener == "serving_metrics" else "/health")
            return connection.getresponse().status == 200
        except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
            return False
        finally:
            connection.close()
    with secure(address, authority, client) as channel:
        info = channel.unary_unary("/recurve.v1.Control/GetServerInfo")
        try:
            return bool(info(b"", timeout=30 if client else 2))
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            return False


def test_every_listener_requires_a_certificate_and_presents_the_newest(authority, stranger, tmp_path):
    mine, theirs, old = authority.sign("me"), stranger.sign("them"), authority.sign("me, once", expired=True)
    first, second = authority.sign(), authority.sign()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.ca))
    with serve_at_all_listeners(*flags) as (_, addresses):
        for listener, address in addresses.items():
            assert answers(listener, address, authority, mine), listener
            for client in (None, theirs, old):
                assert not answers(listener, address, authority, client), listener
        context = context_of(authority, mine)
        before = {listener: serial(address, context) for listener, address in addresses.items()}
        assert len(set(before.values())) == 1
        shutil.copy(second.cert, cert)
        shutil.copy(second.key, key)
        for listener, address in addresses.items():
            wait_for(lambda: serial(address, context) != before[listener])  # noqa: B023
            assert answers(listener, address, authority, mine), listener


def refused_start(*flags):
    done = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_files_of_no_use_are_refused_at_the_start(authority, tmp_path):
    one, other = authority.sign(), authority.sign()
    weak = authority.sign(key=["rsa:1024"])
    absent = str(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "--tls-cert" in refused_start("--tls-cert", absent, "--tls-key", str(one.key))
    assert "--tls-key" in refused_start("--tls-cert", str(one.cert), "--tls-key", absent)
    assert "--tls-key" in refused_start("--tls-cert", str(one.cert), "--tls-key", str(other.key))
    assert "--tls-cert" in refused_start("--tls-cert", str(empty), "--tls-key", str(one.key))
    assert "too small" in refused_start(*weak.flags)
    assert "--tls-client-ca" in refused_start(*one.flags, "--tls-client-ca", str(empty))
    assert "--tls-key" in refused_start("--tls-cert", str(one.cert))
    assert "--tls-cert" in refused_start("--tls-key", str(one.key))
    assert not re.search("terminate|abort", refused_start(*weak.flags))


def test_the_python_client_speaks_it(authority, monkeypatch):
    mine = authority.sign("me")
    with serve(*authority.sign().flags, "--tls-client-ca", str(authority.ca)) as both:
        tls = recurve.Tls(ca=authority.ca, cert=mine.cert, key=mine.key)
        with Client(both.address, tls=tls) as client:
            ids = client.tokenize("It was").ids

        async def by_async_client(**options):
            async with recurve.AsyncClient(both.address, **options) as client:
                scored = await client.score("It was a dark night")
                assert scored.scored_tokens > 0
                return (await client.tokenize("It was")).ids

        assert asyncio.run(by_async_client(tls=tls)) == ids
        with Client(both.address, retry=recurve.Retry(attempts=1)) as client:
            with pytest.raises(recurve.UnreachableError):
                client.tokenize("It was", timeout=2)
        for name, value in environment(authority, mine).items():
            monkeypatch.setenv(name, value)
        assert asyncio.run(by_async_client()) == ids
        with Client(both.address) as client:
            assert client.tokenize("It was").ids == ids
    with pytest.raises(ValueError):
        recurve.Tls(cert=mine.cert)


def environment(authority, client):
    return {"RECURVE_TLS_CA": str(authority.ca), "RECURVE_TLS_CERT": str(client.cert),
            "RECURVE_TLS_KEY": str(client.key)}


def test_the_command_line_and_the_load_generator_speak_it(authority, stranger):
    mine = authority.sign("me")
    with serve(*authority.sign().flags, "--tls-client-ca", str(authority.ca)) as both:
        def run(program, *arguments, **variables):
            return subprocess.run([BIN / program, *map(str, arguments), "--server", both.address],
                                  env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)

        ask = ("recurve", "tokenize", "--prompt", "It was")
        said = run(*ask, "--tls-ca", authority.ca, "--tls-cert", mine.cert, "--tls-key", mine.key)
        assert said.returncode == 0, said.stderr
        from_environment = run(*ask, **environment(authority, mine))
        assert from_environment.stdout == said.stdout
        loaded = run("recurve-loadgen", "--streams", "2", "--warmup", "0", "--duration", "1", "--quiet", **environment(authority, mine))
        assert loaded.returncode == 0, loaded.stderr
        assert run(*ask).returncode == 3
        assert run(*ask, "--tls-ca", stranger.ca).returncode == 3
        absent = run(*ask, "--tls-ca", "/absent")
        assert absent.returncode == 2 and "/absent" in absent.stderr
        half = run(*ask, "--tls-cert", mine.cert)
        assert half.returncode == 2 and "key" in half.stderr


def test_clients_show_a_key_within_it(authority, tmp_path):
    file = tmp_path / "keys.json"
    key = subprocess.run([BIN / "recurve", "keys", "new", "--file", file, "--tenant", "alice"], check=True,
                         capture_output=True, text=True).stdout.strip()
    tls = recurve.Tls(ca=authority.ca)
    with serve(*authority.sign().flags, "--keys", str(file)) as locked:
        def tokenize(*metadata):
            with secure(locked.address, authority) as channel:
                call = channel.unary_unary("/recurve.v1.Inference/Tokenize",
                                           inference_pb2.TokenizeRequest.SerializeToString,
                                           inference_pb2.TokenizeResponse.FromString)
                return list(call(inference_pb2.TokenizeRequest(text="It was"), metadata=metadata, timeout=60).ids)

        async def by_async_client():
            async with recurve.AsyncClient(locked.address, tls=tls, key=key) as client:
                return list((await client.tokenize("It was")).ids)

        ids = tokenize(("authorization", f"Bearer {key}"))
        with Client(locked.address, tls=tls, key=key) as client:
            assert list(client.tokenize("It was").ids) == ids
        assert asyncio.run(by_async_client()) == ids
        with pytest.raises(grpc.RpcError) as error:
            tokenize()
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with Client(locked.address, tls=tls) as client, pytest.raises(recurve.UnauthenticatedError):
            client.tokenize("It was")
