"""Several models of a server, by both clients."""

import asyncio
import pathlib

import pytest
import recurve

from server import Server

DEMO = pathlib.Path(__file__).parents[3] / "weights_tools/demo"
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


@pytest.fixture(scope="module")
def address():
    with Server(f"a={DEMO}/xlstm-books", "--model", f"b={DEMO}/mamba2-books") as server:
        yield server.address


def test_requests_and_sessions_choose_a_model(address):
    with recurve.Client(address) as client:
        assert client.model_info().name == "a"
        assert client.model_info("b").family == "mamba2"
        first = client.generate("It was", **GREEDY)
        assert first.ids == client.generate("It was", model="a", **GREEDY).ids
        alone = client.generate("It was", model="b", **GREEDY)
        assert client.score("It was", model="b") != client.score("It was", model="a")
        with client.session(model="b") as session:
            assert session.get().model == "b"
            assert session.generate("It was", **GREEDY).ids == alone.ids
            with pytest.raises(recurve.FailedPreconditionError, match='is of the model "b"'):
                session.generate("It was", model="a", **GREEDY)
            with client.import_session(session.export(), model="b") as copy:
                assert copy.get().model == "b"
        with pytest.raises(recurve.NotFoundError, match='this server has "a", "b"'):
            client.generate("It was", model="c", **GREEDY)


def test_the_asynchronous_client_too(address):
    async def chosen():
        async with recurve.AsyncClient(address) as client:
            async with client.session(model="b") as session:
                return (await session.get()).model, (await client.model_info("b")).name

    assert asyncio.run(chosen()) == ("b", "b")
