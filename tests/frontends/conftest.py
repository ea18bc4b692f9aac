"""One table of requests for every frontend; tests/clients_of_others/kserve/run.sh creates the
environment with the clients."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "weights_tools/demo/xlstm-books"
if None in (importlib.util.find_spec("tritonclient"), importlib.util.find_spec("recurve")):
    collect_ignore_glob = ["*_test.py"]  # not the Python of run.sh
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import adapter_folder
    import frontends
    import recurve

    from server import Server


@pytest.fixture(scope="session")
def server(tale, adapters):
    """With limits that a test can reach, and a model with a BOS token."""
    with Server(
        MODEL, "--name", "books", "--http", "127.0.0.1:0", "--max-prompt-tokens", "500", "--max-generated-tokens", "50000",
        "--initial-state", f"tale={tale}", *adapters,
    ) as running:
        yield running


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """The flags of two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    flags = []
    for seed, name in enumerate(("story", "law")):
        adapter_folder.write(folder / name, seed)
        flags += ["--adapter", f"{name}={folder / name}"]
    return flags


@pytest.fixture(scope="session")
def tale(tmp_path_factory):
    """The file of a session that has absorbed a text."""
    path = tmp_path_factory.mktemp("states") / "tale"
    with Server(MODEL) as running, recurve.Client(running.address) as client, client.session() as session:
        session.generate("Once upon a time there was", max_tokens=5)
        path.write_bytes(session.export())
    return path


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
