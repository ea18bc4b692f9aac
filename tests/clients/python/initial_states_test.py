"""Initial states of a server, by both clients."""

import asyncio
import pathlib

import pytest
import recurve

from server import Server

DEMO = pathlib.Path(__file__).parents[3] / "weights_tools/demo"
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The file of an exported session."""
    path = tmp_path_factory.mktemp("states") / "tale"
    with Server(DEMO / "xlstm-books") as server, recurve.Client(server.address) as client, client.session() as session:
        session.generate("Once upon a time", **GREEDY)
        path.write_bytes(session.export())
    return path


@pytest.fixture(scope="module")
def address(state):
    with Server(DEMO / "xlstm-books", "--initial-state", f"tale={state}") as server:
        yield server.address


def test_requests_and_sessions_start_from_a_state(address, state):
    with recurve.Client(address) as client:
        (listed,) = client.model_info().initial_states
        assert listed.name == "tale" and listed.position > 0 and listed.state_bytes > 0
        with client.import_session(state.read_bytes()) as session:
            wanted = session.generate(" a king", **GREEDY).ids
        assert client.generate(" a king", initial_state="tale", **GREEDY).ids == wanted
        assert client.generate(" a king", **GREEDY).ids != wanted
        with client.session(initial_state="tale") as session:
            assert session.get().initial_state == "tale"
            assert session.generate(" a king", initial_state="tale", **GREEDY).ids == wanted
            with session.fork() as fork:
                assert fork.get().initial_state == "tale"
        with client.session() as session, pytest.raises(recurve.InvalidArgumentError, match="began without one"):
            session.generate(" a king", initial_state="tale", **GREEDY)
        with pytest.raises(recurve.NotFoundError, match='this model has "tale"'):
            client.generate(" a king", initial_state="tail", **GREEDY)
        with pytest.raises(recurve.NotFoundError, match='this model has "tale"'):
            client.session(initial_state="tail")


def test_the_asynchronous_client_too(address):
    async def ask():
        async with recurve.AsyncClient(address) as client:
            alone = await client.generate(" a king", initial_state="tale", **GREEDY)
            async with client.session(initial_state="tale") as session:
                assert (await session.generate(" a king", **GREEDY)).ids == alone.ids

    asyncio.run(ask())
