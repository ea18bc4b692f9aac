"""Triton's client before a real server; run.sh makes the environment that has it."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
if importlib.util.find_spec("tritonclient") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    import tritonclient.grpc as triton

    from server import Server


@pytest.fixture(scope="session")
def server():
    with Server(ROOT / "weights_tools/demo/gla-books", "--name", "books") as running:
        yield running


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.address) as made:
        yield made
