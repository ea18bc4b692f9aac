"""recurve-server --map-weights: the same answers from weights in place, and how the server ends when their file is
truncated while it runs.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/mapped_weights.py
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(os.environ["RECURVE_BIN"])
GOLDEN = ROOT / "tests/golden"


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    config, random, packed = ROOT / "weights_tools/demo/configs/qwen3_5_moe.json", folder / "random", folder / "packed"
    for command in (["random", config, random], ["quantize", random, packed, "--weights", "int4"]):
        subprocess.run([sys.executable, "-m", "weights_tools", *command], check=True, cwd=ROOT, capture_output=True)
    return packed


@pytest.fixture(params=["qwen3_5", "rwkv7", "with experts"])
def model(request, tmp_path, with_experts):
    source = with_experts if request.param == "with experts" else GOLDEN / "weight_formats/int4" / request.param
    return pathlib.Path(shutil.copytree(source, tmp_path / "model"))


class Server:
    def __init__(self, model, *flags):
        command = [BIN / "recurve-server", "--model", model, "--tokenizer", "none", "--slots", "1", "--threads", "1"]
        command += ["--listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)
        self.log, ready = "", None
        for line in self.process.stderr:
            self.log += line
            ready = re.search(r"event=serving .*port=(\d+)", line)
            if ready:
                break
        self.address = f"127.0.0.1:{ready[1]}" if ready else None

    def recurve(self, *arguments):
        command = [BIN / "recurve", *arguments, "--server", self.address]
        return subprocess.run(command, text=True, capture_output=True, timeout=120)

    def answer(self):
        """-> ids, exit code."""
        done = self.recurve("generate", "--ids", "--prompt", "1 5 9 2", "--seed", "3", "--max-tokens", "20", "--json")
        chunks = (json.loads(line).get("chunk", {}) for line in done.stdout.splitlines())
        return [i for chunk in chunks for i in chunk.get("ids", [])], done.returncode

    def fingerprint(self):
        return re.search(r'"fingerprint":"([0-9a-f]{32})"', self.recurve("info", "--json").stdout)[1]

    def end(self, number=signal.SIGTERM):
        """-> exit code, the whole log. 0: no signal."""
        if number:
            self.process.send_signal(number)
        self.log += self.process.communicate(timeout=120)[1]
        return self.process.returncode, self.log


def test_tokens_and_fingerprint_are_those_of_copied_weights(model):
    copied, mapped = Server(model, "--map-weights", "off"), Server(model, "--map-weights", "on")
    ids, code = copied.answer()
    assert ids and code == 0
    assert mapped.answer() == (ids, 0)
    assert mapped.fingerprint() == copied.fingerprint()
    (code, log), (_, other) = mapped.end(), copied.end()
    assert code == 0
    assert re.search(r"  weights .* mapped from the files, .* resident\n", log), log
    assert re.search(r"  planned .*, for [\d.]+ of mapped weights too\n", log), log
    assert "mapped" not in other


def test_a_truncated_file_ends_the_server_with_a_sentence(model):
    server = Server(model, "--map-weights", "on")
    assert server.answer()[1] == 0
    os.truncate(model / "model.safetensors", 0)
    assert server.answer()[1] != 0
    code, log = server.end(0)
    assert code == 1
    assert f"\nrecurve-server: {model / 'model.safetensors'}: weights in use cannot be read: the file was truncated" in log


def test_another_bus_error_ends_the_server_as_ever(model):
    code, log = Server(model, "--map-weights", "on").end(signal.SIGBUS)
    assert code == -signal.SIGBUS and "cannot be read" not in log


def test_where_nothing_can_be_mapped_that_is_said():
    code, log = Server(GOLDEN / "qwen3_5/bf16", "--map-weights", "on", "--weights", "f32").end(0)
    assert code == 1 and "recurve-server: --map-weights on: wanted weights that the device cpu uses" in log
