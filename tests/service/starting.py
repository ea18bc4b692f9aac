"""What recurve-server says where it cannot start: one sentence that names the flag, and exit code 1 or 2.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/starting.py
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from keyed_server import BIN, MODEL


def started(*flags, model=("--model", MODEL), listen=("--listen", "127.0.0.1:0"), **options):
    """The exit code and standard error of a server that does not start."""
    listen = () if "--listen" in flags else listen
    command = [BIN / "recurve-server", *model, *listen, "--threads", "1", *flags]
    done = subprocess.run(command, text=True, stderr=subprocess.PIPE, timeout=120, **options)
    return done.returncode, done.stderr


@pytest.mark.parametrize("flag", ["--listen", "--http", "--metrics", "--admin"])
@pytest.mark.parametrize("address", ["50051", "nowhere", "host.invalid:80", "unix:" + "x" * 200])
def test_an_address_that_is_none_is_named_with_its_flag(flag, address):
    code, said = started(flag, address)
    assert code == 1
    assert f'cannot listen on "{address}": ' in said and said.endswith(f"choose another with {flag}\n")
    assert "TLS" not in said and "other machines" not in said


@pytest.mark.parametrize("flag", ["--listen", "--http", "--metrics", "--admin"])
def test_a_port_in_use_is_named_with_its_flag(flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        code, said = started(flag, address)
    assert (code, f'"{address}": Address already in use; choose another with {flag}\n' in said) == (1, True)


def test_words_of_the_command_line_that_are_wrong_are_named():
    code, said = started(model=())
    assert (code, "MODEL_DIR is required" in said) == (2, True)
    code, said = started("--model", MODEL, model=(MODEL,))
    assert (code, f"two models are given without a name, {MODEL} and {MODEL}" in said) == (2, True)
    code, said = started("other", model=(MODEL,))
    assert (code, "unexpected argument other" in said) == (2, True)
    code, said = started("--max-qeue", "3")
    assert (code, "unknown flag --max-qeue; did you mean --max-queue?" in said) == (2, True)


def in_an_empty_network(*command):
    """Runs it in a separate network, where the default ports are free."""
    own = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run([*own, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command], text=True,
                          capture_output=True, timeout=120)


def on_default_ports(folder):
    """Called in an empty network."""
    with open(folder / "log", "w") as log:
        server = subprocess.Popen([BIN / "recurve-server", MODEL, "--threads", "1", "--slots", "2"], stderr=log)
    try:
        while "event=serving_http" not in (folder / "log").read_text():
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        subprocess.run([BIN / "recurve", "health"], check=True, timeout=60)
        ask = ["curl", "-sS", "--max-time", "30", "-w", "%{http_code}", "http://127.0.0.1:8000/health", "-o", "/dev/null"]
        assert subprocess.run(ask, check=True, text=True, capture_output=True).stdout == "200"
        assert subprocess.run([*ask, "-H", "Host: evil.example"], text=True, capture_output=True).stdout == "403"
        listening = subprocess.run(["ss", "-Hltn"], check=True, text=True, capture_output=True).stdout
        assert sorted(line.split()[3] for line in listening.splitlines()) == ["127.0.0.1:50051", "127.0.0.1:8000"]
        code, said = started("--listen", "127.0.0.1:0", "--http", "127.0.0.1:8000")
        assert (code, "choose another with --http\n" in said) == (1, True)
        code, said = started(model=(MODEL,), listen=())
        assert (code, "choose another with --listen\n" in said) == (1, True)
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
    assert re.search(r"\n  grpc +127.0.0.1:50051\n  http +http://127.0.0.1:8000/\n", (folder / "log").read_text())


def test_a_model_alone_is_served_over_grpc_and_http_on_loopback(tmp_path):
    if in_an_empty_network("true").returncode != 0:
        pytest.skip("no right to create a network")
    code = f"import pathlib, starting; starting.on_default_ports(pathlib.Path({str(tmp_path)!r}))"
    here = str(pathlib.Path(__file__).parent)
    done = in_an_empty_network("env", f"PYTHONPATH={here}", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_a_missing_tokenizer_is_found_before_the_weights_are_loaded(tmp_path):
    shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    code, said = started(model=("--model", tmp_path / "model"))
    assert code == 1 and "no tokenizer found" in said and "give its folder with --tokenizer" in said
    assert "loaded" not in said


def test_a_file_of_keys_in_the_folder_of_states_is_refused(tmp_path):
    states = tmp_path / "states"
    (states / "below").mkdir(parents=True)
    for file in (states / "keys", states / "below" / "keys"):
        subprocess.run([BIN / "recurve", "keys", "state", "new", "--file", file], check=True)
        for flag in ("--state-keys", "--keys"):
            code, said = started("--state-dir", states, flag, file)
            assert (code, f"{flag} {file} is in --state-dir {states}" in said) == (1, True)
