"""Several models of a server, by both clients."""

import asyncio
import pathlib
import shutil

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


@pytest.fixture
def with_root(tmp_path):
    """A server with a model "a", and a checkpoint "b" below its root."""
    (tmp_path / "b").mkdir()
    for file in (DEMO / "mamba2-books").iterdir():
        shutil.copy(file, tmp_path / "b")
    flags = ["--model-root", str(tmp_path), "--session-memory", "256MB", "--prefix-memory", "64MB"]
    with Server(f"a={DEMO}/xlstm-books", *flags) as server:
        yield server.address


def names(client):
    return [model.name for model in client.list_models().models]


def test_an_administrator_loads_and_unloads(with_root, connect):
    client = connect(with_root)
    assert names(client) == ["a"]
    loaded = client.load_model("c", "b", flags={"slots": "2"})
    assert (loaded.name, loaded.family, loaded.failed) == ("c", "mamba2", False)
    listed = client.list_models()
    assert listed.models[1] == loaded and listed.loading == listed.unloading == ()
    assert len(client.generate("It was", model="c", **GREEDY).ids) == 6
    with pytest.raises(recurve.AlreadyExistsError, match='the model "c" is loaded'):
        client.load_model("c", "b")
    client.unload_model("c", drain_seconds=5)
    assert names(client) == ["a"]
    assert client.load_model("b").name == "b"
    with pytest.raises(recurve.InvalidArgumentError, match="flags: slots"):
        client.load_model("d", "b", flags={"slots": "-1"})
    with pytest.raises(recurve.NotFoundError):
        client.load_model("none")
    with pytest.raises(recurve.FailedPreconditionError, match='the model "a" stays'):
        client.unload_model("a")
    with pytest.raises(recurve.InvalidArgumentError, match="drain_seconds"):
        client.unload_model("b", drain_seconds=-1)


def test_a_server_without_a_root_loads_none(address, connect):
    with pytest.raises(recurve.UnimplementedError, match="--model-root"):
        connect(address).load_model("b")
