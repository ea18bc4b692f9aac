"""What recurve-server says where it cannot start: one sentence that names the flag, and exit code 1 or 2.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/starting.py
"""

import shutil
import socket
import subprocess

import pytest
from keyed_server import BIN, MODEL


def started(*flags, model=("--model", MODEL), **options):
    """The exit code and standard error of a server that does not start."""
    listen = () if "--listen" in flags else ("--listen", "127.0.0.1:0")
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


def test_a_model_without_its_flag_is_recognised():
    code, said = started(model=(MODEL,))
    assert (code, f"did you mean --model {MODEL}?" in said) == (2, True)
    code, said = started(model=())
    assert (code, "--model DIR is required" in said) == (2, True)
    code, said = started("--max-qeue", "3")
    assert (code, "unknown flag --max-qeue; did you mean --max-queue?" in said) == (2, True)


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
