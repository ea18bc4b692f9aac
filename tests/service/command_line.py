"""`recurve generate` with the server: its answer satisfies the constraint of each flag. ctest runs this with RECURVE_BIN set to the folder of recurve-server and recurve; by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/command_line.py
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from keyed_server import of_command_line

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/clients/python"))
from server import BIN, Server  # noqa: E402

MODEL = ROOT / "weights_tools/demo/xlstm-books"
PERSON = ROOT / "tests/clients/person.json"


@pytest.fixture(scope="module")
def server():
    with Server(MODEL) as running:
        yield running


def run(server, *flags):
    return subprocess.run(
        [BIN / "recurve", "generate", "--server", server.address, "--prompt", "It was a dark night, and",
         "--max-tokens", "400", "--seed", "5", *flags],
        text=True, capture_output=True, env=of_command_line())


def generate(server, *flags):
    done = run(server, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_answer_is_of_the_schema_in_a_file(server):
    said = json.loads(generate(server, "--json-schema", PERSON))
    assert list(said) == ["name", "age", "kind"]
    assert isinstance(said["name"], str) and len(said["name"]) <= 12
    assert 0 <= said["age"] <= 120 and said["kind"] in ("cat", "dog")


def test_an_answer_is_of_each_other_form(server, tmp_path):
    assert re.fullmatch("[a-c]{2}-[0-9]{3}", generate(server, "--regex", "[a-c]{2}-[0-9]{3}"))
    grammar = tmp_path / "grammar.ebnf"
    grammar.write_text('root ::= "(" root ")" | "x"\n')
    said = generate(server, "--grammar", grammar)
    assert re.fullmatch(r"\(*x\)*", said) and said.count("(") == said.count(")")
    choices = ("yes", "no, never")
    assert generate(server, "--choice", choices[0], "--choice", choices[1]) in choices
    tags = tmp_path / "tags.json"
    tags.write_text(json.dumps({
        "triggers": ["<n="],
        "structures": [{"begin": "<n=", "schema": {"enum": [1, 2]}, "end": ">"}],
        "required": True, "single": True,
    }))
    assert re.search("<n=[12]>", generate(server, "--structural-tag", tags))


def test_what_is_not_enforced_is_refused_by_name(server, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.ebnf"
    schema.write_text('{"contains": {}}')
    grammar.write_text("x ::= ")
    for flags, named in (
        (("--json-schema", schema), "contains at #"),
        (("--regex", "(?=a)"), "regular expression"),
        (("--grammar", grammar), "root rule"),
    ):
        done = run(server, *flags)
        assert done.returncode != 0 and done.stdout == ""
        assert named in done.stderr


def answer_that_ends(end):
    """What `recurve generate` prints on standard error where `end` stops the server in the middle of its answer."""
    with Server(MODEL, "--drain-seconds", "0") as server:
        command = [BIN / "recurve", "generate", "--server", server.address, "--prompt", "It was",
                   "--max-tokens", "1000000", "--ignore-eos"]
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=of_command_line())
        assert asked.stdout.read(1)
        end(server)
        said = asked.communicate()[1].decode()
    return asked.returncode, server.address, said


def test_a_server_that_stops_in_the_middle_of_an_answer_is_told_from_one_that_is_not_there():
    code, _, said = answer_that_ends(lambda server: server.process.terminate())
    assert (code, said) == (4, "recurve: UNAVAILABLE: the server is shutting down: use another one\n")
    code, address, said = answer_that_ends(lambda server: server.kill())
    assert code == 3
    assert re.match(rf"recurve: the connection to {address} was lost \(.*\)\nrecurve: the server ended or ", said)
    assert "TLS" not in said
