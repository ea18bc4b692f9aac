"""Adapters of a server, by both clients."""

import asyncio
import pathlib

import adapter_folder
import pytest
import recurve

from server import Server

DEMO = pathlib.Path(__file__).parents[3] / "weights_tools/demo"
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "story"
    adapter_folder.write(folder, seed=1, rank=8)
    with Server(DEMO / "xlstm-books", "--adapter", f"story={folder}") as server:
        yield server.address


def test_requests_and_sessions_have_an_adapter(address):
    with recurve.Client(address) as client:
        (listed,) = client.model_info().adapters
        assert (listed.name, listed.rank, listed.matrices) == ("story", 8, 2)
        assert listed.bytes > 0 and len(listed.digest) == 32
        wanted = client.generate(TEXT, adapter="story", **GREEDY).ids
        assert client.generate(TEXT, **GREEDY).ids != wanted
        assert client.generate(TEXT, model="story", **GREEDY).ids == wanted
        with client.session(adapter="story") as session:
            assert session.get().adapter == "story"
            assert session.generate(TEXT, adapter="story", **GREEDY).ids == wanted
            with session.fork() as fork:
                assert fork.get().adapter == "story"
        with client.session(model="story") as session:
            assert session.get().adapter == "story"
            assert session.generate(TEXT, **GREEDY).ids == wanted
        with client.session() as session, pytest.raises(recurve.InvalidArgumentError, match="began without one"):
            session.generate(TEXT, adapter="story", **GREEDY)
        with pytest.raises(recurve.NotFoundError, match='this model has "story"'):
            client.generate(TEXT, adapter="lore", **GREEDY)
        with pytest.raises(recurve.NotFoundError, match='this model has "story"'):
            client.session(adapter="lore")
        assert client.score(TEXT, adapter="story").sum_logprob != client.score(TEXT).sum_logprob
        assert client.embed([TEXT], adapter="story").vectors != client.embed([TEXT]).vectors


def test_the_asynchronous_client_too(address):
    async def ask():
        async with recurve.AsyncClient(address) as client:
            alone = await client.generate(TEXT, adapter="story", **GREEDY)
            async with client.session(adapter="story") as session:
                assert (await session.generate(TEXT, **GREEDY)).ids == alone.ids

    asyncio.run(ask())
