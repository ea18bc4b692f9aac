"""One table of requests through every door; tests/clients_of_others/kserve/run.sh makes the
environment that has the clients."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
if None in (importlib.util.find_spec("tritonclient"), importlib.util.find_spec("recurve")):
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import doors

    from server import Server


@pytest.fixture(scope="session")
def server():
    """With limits that a test can reach; of a model that has a token for the beginning."""
    with Server(
        ROOT / "weights_tools/demo/xlstm-books", "--name", "books", "--http", "127.0.0.1:0",
        "--max-prompt-tokens", "500", "--max-generated-tokens", "50000",
    ) as running:
        yield running


@pytest.fixture(scope="session")
def every_door(server):
    opened = doors.every_door(server.address, server.http_address)
    yield opened
    for door in opened:
        door.close()


@pytest.fixture(scope="session")
def own(every_door):
    """The door of the protocol of our own, which the others are compared with."""
    return every_door[0]
