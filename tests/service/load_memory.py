"""The memory that loading takes: recurve-server packs weights without a second copy, within what it has planned, and
weights_tools quantize packs in pieces. Not under sanitizers, which take memory themselves.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/load_memory.py
"""

import json
import re
import resource
import subprocess
import sys

import pytest
from keyed_server import BIN, ROOT

MIB = 1 << 20


def tool(*arguments):
    """The largest resident memory of the command, in bytes."""
    command = [sys.executable, "-m", "weights_tools", *map(str, arguments)]
    probe = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr); "
    probe += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", probe, *command], check=True, cwd=ROOT, text=True, capture_output=True)
    return int(done.stdout) << 10


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """258 MB in bf16."""
    model = tmp_path_factory.mktemp("models") / "mamba-130m"
    tool("random", ROOT / "tests/configs/mamba-130m.json", model)
    return model


def loaded(model, *flags):
    """Bytes that were resident at most until a server was ready, and its start-up table."""
    command = [BIN / "recurve-server", "--model", model, "--tokenizer", "none", "--slots", "1", "--threads", "2"]
    command += ["--session-memory", "0", "--prefix-memory", "0", "--listen", "127.0.0.1:0", *flags]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as server:
        log = ""
        for line in server.stderr:
            log += line
            if "event=serving" in line:
                break
        with open(f"/proc/{server.pid}/status") as status:
            most = int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) << 10
        server.terminate()
    assert "event=serving" in log, log
    return most, log


def test_packing_while_loading_stays_within_the_plan(model):
    """Without the part of the plan for constraints, of which there are none."""
    most, log = loaded(model, "--weights", "int4")
    plan = re.search(r"  planned .* = ([\d.]+) GiB; ", log)
    constraints = re.search(r"constraints ([\d.]+)", log)
    planned = (float(plan[1]) - float(constraints[1] if constraints else 0)) * (1 << 30)
    assert "in int4" in log
    print(f"{most / MIB:.0f} MiB resident at most, {planned / MIB:.0f} MiB planned")
    assert most <= planned


def test_quantize_packs_in_pieces(model, tmp_path):
    """The largest matrix alone has 77 MB in bf16 and 154 MB in fp32."""
    most = tool("quantize", model, tmp_path / "packed", "--weights", "int4")
    print(f"{most / MIB:.0f} MiB resident at most")
    assert most < 300 * MIB
