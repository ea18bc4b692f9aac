"""One table of requests for every frontend; tests/clients_of_others/kserve/run.sh creates the
environment with the clients."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
if None in (importlib.util.find_spec("tritonclient"), importlib.util.find_spec("recurve")):
    collect_ignore_glob = ["*_test.py"]  # not the Python of run.sh
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import frontends

    from server import Server


@pytest.fixture(scope="session")
def server():
    """With limits that a test can reach, and a model with a BOS token."""
    with Server(
        ROOT / "weights_tools/demo/xlstm-books", "--name", "books", "--http", "127.0.0.1:0",
        "--max-prompt-tokens", "500", "--max-generated-tokens", "50000",
    ) as running:
        yield running


@pytest.fixture(scope="session")
def every_frontend(server):
    opened = frontends.every_frontend(server.address, server.http_address)
    yield opened
    for frontend in opened:
        frontend.close()


@pytest.fixture(scope="session")
def own(every_frontend):
    """The frontend of recurve.v1, with which the others are compared."""
    return every_frontend[0]
