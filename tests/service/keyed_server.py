"""recurve-server with keys, as a process, and what asks it: curl, grpcio and the command line."""

import os
import pathlib
import re
import select
import subprocess
import time

import grpc

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "weights_tools/demo/xlstm-books"
BIN = pathlib.Path(os.environ["RECURVE_BIN"])
SUPPRESSIONS = ROOT / "tests/lsan.supp"


def of_command_line(**more):
    """The environment of `recurve`, whose leaks are gRPC's under ASan: its other resolver of names, c-ares,
    leaks ten bytes, and OpenSSL what it keeps for gRPC's threads."""
    suppressed = f"suppressions={SUPPRESSIONS}:print_suppressions=0"
    return {**os.environ, "GRPC_DNS_RESOLVER": "native", "LSAN_OPTIONS": suppressed, **more}


def new_key(file, tenant, *flags):
    made = subprocess.run([BIN / "recurve", "keys", "new", "--file", file, "--tenant", tenant, *flags],
                          check=True, text=True, capture_output=True)
    assert made.stderr == ""
    assert re.fullmatch(r"rck_[0-9a-f]{12}_[\w-]{43}\n", made.stdout)
    return made.stdout.strip()


def wait_for_output(process):
    """Returns once the process has written something, or has ended. Nothing is read."""
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "no output within 60 s"


class Server:
    def __init__(self, folder, *flags, host="127.0.0.1", **environment):
        self.log = folder / "log"
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(
                [BIN / "recurve-server", "--model", MODEL, "--listen", f"{host}:0", "--http",
                 f"{host}:0", "--slots", "4", "--threads", "1", "--log-level", "debug", *flags],
                stderr=out, env={**os.environ, **environment})
        self.wait_for("event=serving_http")
        self.ports = dict(re.findall(r"event=(serving\w*) .* port=(\d+)", self.log.read_text()))
        self.address = f"127.0.0.1:{self.ports['serving']}"
        self.url = f"http://127.0.0.1:{self.ports['serving_http']}"

    def wait_for(self, what):
        for _ in range(1500):
            if re.search(what, self.log.read_text()):
                return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"{what}: not in\n{self.log.read_text()}")

    def call(self, rpc, key=None, message=b"", address=None):
        """The code of an rpc of any form: each takes a stream of one message."""
        with grpc.insecure_channel(address or self.address) as channel:
            metadata = (("authorization", f"Bearer {key}"),) if key else ()
            answers = channel.stream_stream(rpc)(iter([message]), metadata=metadata, timeout=30)
            try:
                list(answers)
            except grpc.RpcError:
                pass
            return answers.code()

    def curl(self, method, path, key=None, *more):
        show = ["-H", f"Authorization: Bearer {key}"] if key else []
        if method == "POST":
            show += ["-H", "Content-Type: application/json"] + ([] if "-d" in more else ["-d", "{}"])
        out = subprocess.run(["curl", "-sS", "--max-time", "30", "-X", method, "-w", "\n%{http_code}",
                              *show, *more, self.url + path], check=True, text=True, errors="replace",
                             capture_output=True).stdout
        body, _, status = out.rpartition("\n")
        return int(status), body

    def recurve(self, *arguments, key=None, check=True):
        environment = of_command_line(RECURVE_SERVER=self.address)
        environment.pop("RECURVE_KEY", None)
        if key:
            environment["RECURVE_KEY"] = key
        return subprocess.run([BIN / "recurve", *arguments], env=environment, check=check, text=True,
                              capture_output=True, timeout=60)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(timeout=60) == 0, self.log.read_text()
