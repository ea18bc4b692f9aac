"""The examples do what they say, as a user runs them."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

from server import Server

EXAMPLES = ROOT / "clients/python/examples"


def run(name, *arguments, typed=None):
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        input=typed,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) < 40


def test_chat(address):
    printed = run("chat.py", address, typed="Who are you?\nAnd where?\n")
    assert re.fullmatch(r"> .+\n> .+\n> ", printed, re.DOTALL)


def test_chat_without_a_template():
    with Server(ROOT / "weights_tools/demo/mamba-books") as server:
        printed = run("chat.py", server.address, typed="The old man said:\n")
    assert printed.startswith("> ")
    assert printed.endswith("\n> ")


def test_branching_story(address):
    printed = run("branching_story.py", address)
    assert printed.count("\n-- ") == 3
    tokens = [int(count) for count in re.findall(r"\((\d+) tokens behind it\)", printed)]
    night = int(re.search(r"back to the night: (\d+) tokens", printed)[1])
    assert len(tokens) == 3
    assert all(count > night for count in tokens)


def test_score_corpus(address, tmp_path):
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    files[0].write_text("It was a dark night. " * 50)
    files[1].write_text("xqzj vwkp " * 50)
    printed = run("score_corpus.py", address, *files)
    bits = [float(found) for found in re.findall(r": ([0-9.]+) bits per byte", printed)]
    assert len(bits) == 2
    assert bits[0] < bits[1]


def test_hundred_streams(address):
    printed = run("hundred_streams.py", address, 100, 5)
    assert printed.startswith("500 tokens in ")
