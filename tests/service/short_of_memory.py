"""What recurve-server says where memory or threads do not suffice to start. Not under sanitizers, which reserve
address space themselves.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/short_of_memory.py
"""

import os
import resource
import signal
import subprocess
import time

import pytest
from keyed_server import BIN, MODEL
from starting import started

TOO_MUCH = ("--slots", "1000000", "--session-memory", "100000GB")


def without_threads(first, count):
    """The environment of a server whose threads `first` to `first + count - 1`, from 0 on, cannot start."""
    return {**os.environ, "LD_PRELOAD": str(BIN.parent / "tests/libfail_thread.so"),
            "RECURVE_FAIL_THREAD": str(first), "RECURVE_FAIL_THREADS": str(count)}


def test_a_process_without_memory_or_threads_says_so():
    """Wherever the limit is met, there is a sentence; a library may abort."""
    for megabytes in (160, 200, 240, 280, 320):
        limit = (megabytes << 20, megabytes << 20)
        code, said = started("--sandbox", "off", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        assert code in (1, -signal.SIGABRT), (megabytes, code, said)
        assert "\nrecurve-server: " in "\n" + said, (megabytes, said)


@pytest.mark.parametrize("count", [1, 1000])
def test_a_start_without_one_thread_ends_with_a_sentence(count, tmp_path):
    """The start fails in any case; gRPC, which lacks threads then, does not hold up its end."""
    sentences = set()
    for first in range(24):
        code, said = started("--sandbox", "off", "--state-dir", str(tmp_path), *TOO_MUCH,
                             env=without_threads(first, count))
        assert code in (1, -signal.SIGABRT), (first, code, said)
        sentences.add(("\n" + said).split("\nrecurve-server: ")[-1].split(":")[0])
    assert "cannot start a thread" in sentences
    assert sentences <= {"cannot start a thread", "not enough memory on device 'cpu'",
                         "a library ended the process"}


def test_a_server_that_started_without_one_thread_stops_when_asked(tmp_path):
    """gRPC may wait for ever for the thread that it could not start; the server does not wait for it."""
    log, stopped = tmp_path / "log", []
    for first in range(24):
        with open(log, "w") as out:
            server = subprocess.Popen(
                [BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--threads", "1", "--sandbox", "off"],
                stderr=out, env=without_threads(first, 1))
        try:
            while server.poll() is None and "event=serving " not in log.read_text():
                time.sleep(0.02)
            if server.poll() is None:
                server.terminate()
                stopped.append((first, server.wait(timeout=60)))
                assert stopped[-1][1] == 0 or "recurve-server: gRPC has not stopped" in log.read_text(), stopped
        finally:
            server.kill()
            server.wait()
    assert {code for _, code in stopped} == {0, 1}
