"""Clients from other machines: hosts of a network, each a separate network namespace. ctest
runs this with RECURVE_BIN set to the folder of recurve-server.

Functions named `on_server_...` run in the namespace of the server, each in a separate process.
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, MODEL, ROOT, Server, new_key  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/clients_of_others/tls"))
from certificates import Authority  # noqa: E402

OWN_NETWORK = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


class Host:
    """Another machine, connected to this one by a virtual cable, with addresses reserved for
    documentation."""

    numbers = itertools.count(1)

    def __init__(self):
        number = 4 * next(self.numbers)
        self.address, self.server = (f"198.51.100.{number + end}" for end in (2, 1))
        self.process = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready && exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        cable = f"cable{number}"
        for command in (f"ip link add {cable} type veth peer name there netns {self.process.pid}",
                        f"ip address add {self.server}/30 dev {cable}", f"ip link set {cable} up"):
            subprocess.run(command.split(), check=True)
        for command in (f"ip address add {self.address}/30 dev there", "ip link set there up"):
            self.run(*command.split())

    def command(self, *command):
        return ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", *map(str, command)]

    def run(self, *command, check=True):
        return subprocess.run(self.command(*command), check=check, text=True, capture_output=True, timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def status(host, url, *more):
    """The status that curl gets there; 0: no answer."""
    done = host.run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "30", *more, url, check=False)
    return int(done.stdout)


def can_have_hosts():
    try:
        made = "ip link add here type veth peer name there && nsenter --net=/proc/self/ns/net true"
        return subprocess.run([*OWN_NETWORK, "sh", "-c", made], capture_output=True).returncode == 0
    except OSError:
        return False


def on_server(function, folder):
    code = f"import pathlib, network; network.on_server_{function}(pathlib.Path({str(folder)!r}))"
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    subprocess.run([*OWN_NETWORK, *up, sys.executable, "-c", code], check=True, cwd=pathlib.Path(__file__).parent)


def on_server_with_keys(folder):
    authority = Authority(folder)
    key = new_key(folder / "keys.json", "alice")
    (folder / "key").write_text(key)
    with Host() as host:
        server = Server(folder, "--keys", folder / "keys.json", *authority.sign(names=f"IP:{host.server}").flags,
                        host="0.0.0.0")
        try:
            url = f"{host.server}:{server.ports['serving_http']}/v1/models"
            trusting = ("--cacert", authority.ca)
            assert status(host, f"http://{url}") == 0, "without TLS"
            assert status(host, f"https://{url}") == 0, "an unknown issuer"
            assert status(host, f"https://{url}", *trusting) == 401
            assert status(host, f"https://{url}", *trusting, "-H", f"Authorization: Bearer {key}") == 200
            ask = (BIN / "recurve", "--server", f"{host.server}:{server.ports['serving']}", "--tls-ca", authority.ca,
                   "generate", "--prompt", "Once", "--max-tokens", "3", "--ignore-eos")
            stranger = host.run("env", "-u", "RECURVE_KEY", *ask, check=False)
            assert stranger.returncode == 1 and "UNAUTHENTICATED" in stranger.stderr
            assert host.run(*ask, "--key-file", folder / "key").stdout
            server.wait_for(f"event=request_finished .*peer={host.address} code=OK")
            refused = re.findall(r"event=audit what=authentication .*peer=(\S+) result=no_key",
                                 server.log.read_text())
            assert refused == 2 * [host.address]
        finally:
            server.stop()


def on_server_without(folder):
    """Neither TLS nor keys, only one of them, and without the flag that allows it."""
    authority = Authority(folder)
    key = new_key(folder / "keys.json", "alice")
    assert key
    with Host() as host:
        for flags in ([], ["--keys", folder / "keys.json"], authority.sign(names=f"IP:{host.server}").flags):
            refused = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", f"{host.server}:0", *flags],
                                     text=True, capture_output=True, timeout=60)
            assert refused.returncode == 1, flags
            assert "can be reached by other machines" in refused.stderr and "--insecure-network" in refused.stderr


def on_server_flooded(folder):
    """One host sends far more endless requests than fit a queue of 24; those of another host and of this
    machine are all answered."""
    with Host() as flooding, Host() as other:
        server = Server(folder, "--insecure-network", "--max-queue", "24", "--ttft-ms", "0", host="0.0.0.0")
        ask = ("generate", "--prompt", "Once upon a time", "--max-tokens", "8")
        there = (BIN / "recurve", "--server", f"{other.server}:{server.ports['serving']}")
        body = json.dumps({"prompt": "Once", "max_tokens": 1000000, "ignore_eos": True, "stream": True})
        url = f"http://{flooding.server}:{server.ports['serving_http']}/v1/completions#[1-60]"
        other.run(*there, *ask)
        flood = subprocess.Popen(
            flooding.command("curl", "-sS", "--parallel", "--parallel-immediate", "--parallel-max", "60", "-H",
                             "content-type: application/json", "-d", body, url), stdout=subprocess.DEVNULL)
        try:
            server.wait_for(f"what=limit .*peer={flooding.address} result=RESOURCE_EXHAUSTED name=queue ")
            for _ in range(10):
                other.run(*there, *ask)
                server.recurve(*ask)
            assert flood.poll() is None, "the flood lasts to the end"
            limited = re.findall(r"what=limit .*peer=(\S+) ", server.log.read_text())
            assert set(limited) == {flooding.address}
        finally:
            flood.kill()
            flood.wait()
            server.stop()


pytestmark = pytest.mark.skipif(not can_have_hosts(), reason="needs unshare, nsenter, ip, and the right to networks")


def test_another_machine_needs_tls_and_a_key(tmp_path):
    on_server("with_keys", tmp_path)


def test_a_reachable_address_is_refused_without_tls_and_keys(tmp_path):
    on_server("without", tmp_path)


def test_without_keys_a_flooding_address_leaves_capacity_for_others(tmp_path):
    """It has its share of the queue, and not the last slot while others send requests."""
    on_server("flooded", tmp_path)
