"""Shares and limits of tenants of one server. ctest runs this with RECURVE_BIN set to the
folder of recurve-server."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, Server, new_key  # noqa: E402

STATE = 270_000  # bytes of a session of the model, at least


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server of two tenants, one of whom has limits, and their keys."""
    folder = tmp_path_factory.mktemp("shared")
    file = folder / "keys.json"
    keys = {name: new_key(file, name) for name in ("many", "one", "small", "tight", "back")}
    content = json.loads(file.read_text())
    content["tenants"]["small"] = {"waiting": 1, "sessions": 2, "priority": 0, "tokens_per_minute": 60,
                                   "choices": 2, "prompt_tokens": 100}
    content["tenants"]["tight"] = {"host_bytes": 3 * STATE, "disk_bytes": 3 * STATE}
    content["tenants"]["back"] = {"tokens_per_minute": 300}
    file.write_text(json.dumps(content))
    server = Server(folder, "--keys", file, "--max-queue", "256", "--ttft-ms", "5000", "--state-dir",
                    folder / "states")
    yield server, keys
    server.stop()


def endless(server, key, *flags):
    return subprocess.Popen(
        [BIN / "recurve", "--server", server.address, "generate", "--prompt", "Once", "--max-tokens",
         "1000000", "--ignore-eos", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "RECURVE_KEY": key})


def test_limits_are_refused_by_name(shared):
    server, keys = shared
    ask = ("generate", "--prompt", "Once", "--max-tokens", "70", "--ignore-eos")

    def refused(*arguments):
        done = server.recurve(*arguments, key=keys["small"], check=False)
        assert done.returncode == 1, arguments
        return done.stderr

    for name in ("a", "b"):
        server.recurve("session", "open", name, key=keys["small"])
    assert "2 sessions, which is its limit" in refused("session", "open", "c")
    assert "2 sessions, which is its limit" in refused("session", "fork", "a", "c")
    assert "priority must be at most 0" in refused(*ask, "--priority", "1")
    assert "prompt tokens must be at most 100" in refused("generate", "--prompt", "It was " * 100)
    status, body = server.curl("POST", "/v1/completions", keys["small"], "-d",
                               json.dumps({"prompt": "Once", "n": 3}))
    assert status == 400 and "n must be at most 2" in body
    server.recurve(*ask, key=keys["small"])
    spent = refused(*ask)
    assert "60 tokens per minute" in spent and "try again in" in spent
    status, body = server.curl("POST", "/v1/completions", keys["small"], "-d",
                               json.dumps({"prompt": "Once"}), "-i")
    assert status == 429 and "retry-after" in body.lower()
    log = server.log.read_text()
    for name in ("priority", "prompt_tokens", "choices", "tokens_per_minute", "session_open"):
        assert re.search(rf"event=audit what=limit tenant=small key_id=\w+ .*name={name} unsaid=0", log), name
    server.recurve(*ask, key=keys["one"])


def test_tokens_that_a_rewind_absorbs_again_are_counted(shared):
    server, keys = shared
    ask = ("generate", "--session", "s", "--prompt", "Once", "--max-tokens", "150", "--ignore-eos")
    server.recurve("session", "open", "s", "--rewind-tokens", "1000", key=keys["back"])
    server.recurve(*ask, key=keys["back"])
    server.recurve("session", "mark", "s", "end", key=keys["back"])
    for rewinds in range(10):  # 100 tokens each
        done = server.recurve("session", "rewind", "s", "--position", "100", key=keys["back"], check=False)
        if done.returncode != 0:
            break
        server.recurve("session", "rewind", "s", "end", key=keys["back"])
    assert 1 <= rewinds < 9
    assert "300 tokens per minute" in done.stderr and "try again in" in done.stderr


def test_memory_and_disk_of_sessions_are_bounded(shared):
    server, keys = shared

    def refused(*arguments):
        done = server.recurve("session", *arguments, key=keys["tight"], check=False)
        assert done.returncode == 1, arguments
        return done.stderr

    server.recurve("session", "open", "a", key=keys["tight"])
    server.recurve("session", "fork", "a", "b", key=keys["tight"])
    assert "bytes of host memory" in refused("fork", "a", "c")
    assert "bytes of host memory" in refused("mark", "a", "here")
    server.recurve("session", "close", "b", key=keys["tight"])
    # A durable session reserves twice its state.
    server.recurve("session", "open", "--durability", "local", "kept", key=keys["tight"])
    server.recurve("session", "close", "a", key=keys["tight"])
    assert "bytes of the disk" in refused("open", "--durability", "local", "more")
    server.recurve("session", "open", "more", key=keys["one"])


def test_a_queue_flooded_by_one_tenant_has_capacity_for_another(tmp_path):
    """Far more endless requests than fit the queue; another tenant's are all answered."""
    file = tmp_path / "keys.json"
    keys = {name: new_key(file, name) for name in ("many", "one")}
    server = Server(tmp_path, "--keys", file, "--max-queue", "24", "--ttft-ms", "0")
    flood = []
    try:
        body = json.dumps({"prompt": "Once", "max_tokens": 1000000, "ignore_eos": True, "stream": True})
        headers = {"content-type": "application/json", "authorization": f"Bearer {keys['many']}"}
        for _ in range(60):
            flood.append(http.client.HTTPConnection("127.0.0.1", int(server.ports["serving_http"]), timeout=60))
            flood[-1].request("POST", "/v1/completions", body, headers)
        server.wait_for(r"what=limit .*result=RESOURCE_EXHAUSTED name=queue ")
        for _ in range(10):
            server.recurve("generate", "--prompt", "Once upon a time", "--max-tokens", "8", key=keys["one"])
    finally:
        for connection in flood:
            connection.close()
        server.stop()


def test_a_flood_of_one_tenant_does_not_exclude_another(shared):
    """64 endless streams at the highest priority; another tenant's 40 requests are all answered."""
    server, keys = shared
    flood = [endless(server, keys["many"], "--priority", "10") for _ in range(64)]
    readers = []
    try:
        reached = threading.Event()

        def first_letter(stream):
            if stream.stdout.read(1):
                reached.set()

        readers = [threading.Thread(target=first_letter, args=(stream,)) for stream in flood]
        for reader in readers:
            reader.start()
        assert reached.wait(60), "no stream of the flood has started"
        times = []
        for _ in range(40):
            began = time.monotonic()
            server.recurve("generate", "--prompt", "Once upon a time", "--max-tokens", "8",
                           key=keys["one"])
            times.append(time.monotonic() - began)
        print(f"worst of 40 with 64 streams: {max(times):.2f} s")
        alive = [stream for stream in flood if stream.poll() is None]
        assert alive, "the flood lasts to the end"
    finally:
        for stream in flood:
            stream.kill()
            stream.wait()
        for reader in readers:
            reader.join()
        for stream in flood:
            stream.stdout.close()
