"""recurve-server as a process, its use of the machine, and an honest client."""

import importlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "weights_tools/demo/xlstm-books"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def binary():
    """The folder of recurve-server: RECURVE_BIN, as ctest sets it."""
    return pathlib.Path(os.environ.get("RECURVE_BIN", ROOT / "build/release/bin")).resolve()


def generate_stubs(folder):
    """Generates the modules of the protos."""
    subprocess.run(
        ["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}",
         f"--grpc_out={folder}",
         f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}"]
        + [str(path) for path in sorted((ROOT / "proto").glob("*/v*/*.proto"))],
        check=True)
    sys.path.insert(0, str(folder))


def protocol(name, package="recurve.v1"):
    """A module of a protocol: "inference_pb2", "inference_pb2_grpc", ..."""
    return importlib.import_module(f"{package}.{name}")


def chat_model(folder):
    """The demo model with a chat template, which it does not have."""
    for path in MODEL.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


class Server:
    """A context manager. `files`: its limit of open files."""

    def __init__(self, flags=(), files=None, model=MODEL, tenants=(), limits=None):
        """tenants: get keys, in `keys`; none: a server without keys. limits: of the keys file."""
        self.folder = tempfile.TemporaryDirectory(prefix="recurve-hostile-")
        self.log = pathlib.Path(self.folder.name) / "log"
        if model == "chat":
            model = pathlib.Path(self.folder.name) / "model"
            model.mkdir()
            chat_model(model)
        self.keys = dict.fromkeys(tenants)
        if tenants:
            file = pathlib.Path(self.folder.name) / "keys.json"
            for name in tenants:
                new = [binary() / "recurve", "keys", "new", "--tenant", name, "--file", file]
                self.keys[name] = subprocess.run(new, check=True, capture_output=True, text=True).stdout.strip()
            file.write_text(json.dumps({**json.loads(file.read_text()), "tenants": limits or {}}))
            flags = [*flags, "--keys", file]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        # Requests that wait are part of what is measured.
        waiting = [] if "--ttft-ms" in flags else ["--ttft-ms", "10000"]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(
                [binary() / "recurve-server", "--model", model, "--listen", "127.0.0.1:0", *flags, *waiting],
                stderr=out, preexec_fn=limit)

    def __enter__(self):
        self.address = self.address_of("serving")
        return self

    def address_of(self, event):
        """The address of the port that the event of the log names."""
        while self.process.poll() is None:
            found = re.search(rf"event={event} .*port=(\d+)", self.log.read_text())
            if found:
                return f"127.0.0.1:{found[1]}"
            time.sleep(0.02)
        raise RuntimeError(self.log.read_text())

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.folder.cleanup()

    def usage(self):
        """Resident bytes, threads and open descriptors."""
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return {"resident": 1024 * int(fields["VmRSS"].split()[0]),
                "threads": int(fields["Threads"]),
                "files": len(os.listdir(proc / "fd"))}


class Watch:
    """The peak use of the machine by a server, while this context is active."""

    def __init__(self, server):
        self.server = server
        self.most = server.usage()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.poll)

    def poll(self):
        while not self.ended.wait(0.02):
            for name, value in self.server.usage().items():
                self.most[name] = max(self.most[name], value)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class HonestClient:
    """Requests a few tokens repeatedly on one connection and records the time to each first token, and the
    code of each error."""

    def __init__(self, address, key=None):
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        inference = protocol("inference_pb2")
        self.schemas = 0  # requested so far
        self.stages = []  # Latencies's
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.stub = protocol("inference_pb2_grpc").InferenceStub(self.channel)
        self.request = inference.GenerateRequest(
            text="It was a cold evening", stop={"max_tokens": 4, "ignore_eos": True})

    def ask(self, timeout=60):
        began = time.monotonic()
        first = None
        for message in self.stub.Generate(self.request, timeout=timeout, metadata=self.metadata):
            if first is None and message.HasField("chunk"):
                first = time.monotonic() - began
            if message.HasField("final"):
                usage = message.final.usage
                self.stages.append((usage.queue_seconds, usage.prefill_seconds))
        return first

    def ask_for(self, seconds=None, until=None, pause=0.02, ask=None):
        """Repeats for so long or until an event. Returns Latencies. `ask`: instead of self.ask."""
        found = Latencies()
        self.stages = found.stages
        end = None if seconds is None else time.monotonic() + seconds
        while not found.count or not (until.is_set() if end is None else time.monotonic() > end):
            try:
                found.seconds.append((ask or self.ask)())
            except grpc.RpcError as error:
                code = error.code().name
                found.errors[code] = found.errors.get(code, 0) + 1
            time.sleep(pause)
        return found

    def ask_of_new_schema(self, timeout=60):
        """Seconds to the end of an answer with a new schema. Checks the answer."""
        self.schemas += 1
        name = f"n{self.schemas}"
        schema = {"type": "object", "required": [name, "kind"], "properties": {
            name: {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}}}
        inference = protocol("inference_pb2")
        request = inference.GenerateRequest(
            text="It was a cold evening", stop={"max_tokens": 200}, constraint={"json_schema": json.dumps(schema)})
        began = time.monotonic()
        pieces = [message.chunk.text for message in self.stub.Generate(request, timeout=timeout, metadata=self.metadata)
                  if message.HasField("chunk")]
        answer = json.loads("".join(pieces))
        assert list(answer) == [name, "kind"] and 0 <= answer[name] <= 99 and answer["kind"] in ("cat", "dog"), answer
        return time.monotonic() - began

    def read_answer(self, timeout=60, tokens=100):
        """Mean seconds between two tokens of an answer."""
        inference = protocol("inference_pb2")
        request = inference.GenerateRequest(
            text="It was a cold evening", stop={"max_tokens": tokens, "ignore_eos": True})
        times = [time.monotonic() for message in self.stub.Generate(request, timeout=timeout, metadata=self.metadata)
                 if message.HasField("chunk")]
        return (times[-1] - times[0]) / (tokens - 1)

    def close(self):
        self.channel.close()


class Latencies:
    def __init__(self):
        self.seconds = []
        self.errors = {}
        self.stages = []  # of those seconds, as the server reports: to the first step, and from there to the token

    @property
    def count(self):
        return len(self.seconds) + sum(self.errors.values())

    def p99(self):
        """In seconds; infinite without answers."""
        return quantile(self.seconds, 99)

    def where(self):
        """The median and p99 of all and of each stage."""
        parts = {"all": self.seconds, "queue": [queue for queue, _ in self.stages],
                 "prefill": [prefill for _, prefill in self.stages]}
        return ", ".join(f"{name} {1000 * quantile(part, 50):.1f} and {1000 * quantile(part, 99):.1f} ms"
                         for name, part in parts.items())

    def __str__(self):
        errors = "".join(f", {count} {code}" for code, count in self.errors.items())
        return f"{1000 * self.p99():.0f} ms of {len(self.seconds)}{errors}"


def quantile(values, percent):
    """Infinite without values."""
    if not values:
        return float("inf")
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]
