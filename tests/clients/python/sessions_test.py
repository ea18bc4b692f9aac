"""Sessions as objects, by both clients."""

import asyncio
import gc

import pytest
import recurve

from server import Server

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def session(client):
    with client.session() as session:
        yield session


def names(client):
    return {session.name for session in client.list_sessions()}


def test_a_session_goes_on_from_its_state(client, session):
    whole = client.generate("It was", max_tokens=12, **GREEDY)
    first = session.generate("It was", max_tokens=6, **GREEDY)
    then = session.generate(max_tokens=6, **GREEDY)
    assert first.ids + then.ids == whole.ids
    info = session.get()
    assert info.position == then.usage.session_position
    assert info.pending_token == then.ids[-1]
    assert not info.busy


def test_a_session_streams(session):
    chunks = session.generate("It was", max_tokens=6, stream=True, **GREEDY)
    text = "".join(chunk.text for chunk in chunks)
    session.generate("x", max_tokens=1)
    assert text
    assert "".join(chunk.text for chunk in session.stream("It", max_tokens=3, **GREEDY))


def test_a_chat_in_a_session_sends_new_messages_only(client, session):
    first = session.chat("Who are you?", max_tokens=5, **GREEDY)
    second = session.chat("And where?", max_tokens=5, **GREEDY)
    assert second.prompt.session_position == first.usage.session_position
    whole = client.chat(
        [
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And where?"},
        ],
        max_tokens=5,
        **GREEDY,
    )
    assert second.prompt.prompt_tokens < whole.prompt.prompt_tokens


def test_an_exported_session_continues_to_the_same_tokens(client, session):
    session.generate("It was", max_tokens=5, **GREEDY)
    data = session.export()
    with client.import_session(data) as imported:
        assert imported.get().position == session.get().position
        then = imported.generate(max_tokens=6, **GREEDY)
        assert then.ids == session.generate(max_tokens=6, **GREEDY).ids
        with pytest.raises(recurve.AlreadyExistsError):
            client.import_session(data, imported.name)
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], b"no state"):
        with pytest.raises(recurve.InvalidArgumentError, match="the state cannot be imported"):
            client.import_session(damaged)


def test_a_session_without_tokens_is_not_exported(session):
    with pytest.raises(recurve.FailedPreconditionError):
        session.export()


def test_a_fork_names_its_parent(session):
    with session.fork() as fork:
        assert fork.get().parent == session.name
    assert session.get().parent == ""


def test_forks_share_what_was_and_part_ways(session):
    session.generate("It was", max_tokens=5, **GREEDY)
    with session.fork() as fork:
        assert fork.get().position == session.get().position
        assert fork.get().pending_token == session.get().pending_token
        assert (
            fork.generate(max_tokens=6, **GREEDY).ids
            == session.generate(max_tokens=6, **GREEDY).ids
        )
        fork.generate("Suddenly", max_tokens=1)
        assert fork.get().position > session.get().position
        name = fork.name
    with pytest.raises(recurve.NotFoundError):
        fork.get()
    assert name != session.name


def test_marks_are_places_to_go_back_to(session):
    session.generate("It was", max_tokens=5, **GREEDY)
    marked = session.mark("here")
    assert [(mark.name, mark.position) for mark in marked.marks] == [("here", marked.position)]
    first = session.generate(max_tokens=8, **GREEDY).ids
    assert session.rewind("here").position == marked.position
    assert session.generate(max_tokens=8, **GREEDY).ids == first
    assert session.unmark("here").marks == ()
    for gone in (session.unmark, session.rewind):
        with pytest.raises(recurve.NotFoundError, match="here"):
            gone("here")


def test_a_rewind_to_a_position_absorbs_the_tokens_again(client):
    with client.session(rewind_tokens=1000) as session:
        session.generate("It was", max_tokens=5, **GREEDY)
        middle = session.get()
        assert (middle.rewind_tokens, middle.tokens_from, middle.page_bytes) == (1000, 0, 0)
        rest = session.generate(max_tokens=8, **GREEDY).ids
        rewound = session.rewind(position=middle.position)
        assert (rewound.position, rewound.pending_token) == (middle.position, middle.pending_token)
        assert session.generate(max_tokens=8, **GREEDY).ids == rest
        with pytest.raises(recurve.InvalidArgumentError, match="position must be at most"):
            session.rewind(position=1000)
        with pytest.raises(ValueError, match="either the name of a mark or a position"):
            session.rewind()
    with client.session() as session:
        session.generate("It was", max_tokens=5, **GREEDY)
        with pytest.raises(recurve.NotFoundError, match="rewind_tokens"):
            session.rewind(position=1)


def test_a_session_that_is_not_in_doubt_stays_as_it_is(session):
    session.generate("It was", max_tokens=5, **GREEDY)
    before = session.get()
    accepted = session.accept()
    assert not accepted.in_doubt
    assert (accepted.position, accepted.epoch) == (before.position, before.epoch)


def test_leaving_the_block_keeps_what_has_a_name(client):
    with client.session() as unnamed:
        assert unnamed.name in names(client)
    with client.session("kept") as kept:
        kept.generate("It was", max_tokens=3)
        position = kept.get().position
        with kept.fork("kept-fork") as fork:
            pass
    assert unnamed.name not in names(client)
    assert {"kept", "kept-fork"} <= names(client)
    with client.session("kept") as again:
        assert again.get().position == position
    again.close()
    fork.close()
    fork.close()  # one that is gone is no error
    assert not names(client) & {"kept", "kept-fork"}


def test_a_session_may_have_to_be_there(client):
    with pytest.raises(recurve.NotFoundError, match="never-opened"):
        client.session("never-opened", create=False)
    assert "never-opened" not in names(client)
    with client.session() as session:
        assert client.session(session.name, create=False).name == session.name


def test_the_idle_time_is_the_callers(client):
    with client.session(ttl=1234) as session, session.fork(ttl=0) as fork:
        assert session.get().ttl_seconds == 1234
        assert fork.get().ttl_seconds == 0


def test_sessions_are_listed_by_prefix(client):
    sessions = [client.session(f"listed-{letter}") for letter in "ba"]
    assert [info.name for info in client.list_sessions("listed-")] == ["listed-a", "listed-b"]
    for session in sessions:
        session.close()


def test_a_stream_left_early_frees_the_session(session):
    for _ in session.generate("It was", max_tokens=100000, ignore_eos=True, stream=True):
        break
    gc.collect()
    assert session.generate("x", max_tokens=1).ids
    stream = session.stream(max_tokens=100000, ignore_eos=True)
    next(stream)
    stream.cancel()
    assert list(stream) == []
    with pytest.raises(recurve.CancelledError):
        stream.result()
    assert session.mark("after").marks


def test_leaving_the_block_ends_its_streams(client):
    with client.session("streaming") as session:
        stream = session.stream("It was", max_tokens=100000, ignore_eos=True)
        next(stream)
    assert list(stream) == []
    session.generate("x", max_tokens=1)
    stream = session.stream("It was", max_tokens=100000, ignore_eos=True)
    next(stream)
    session.close()
    assert "streaming" not in names(client)


@pytest.mark.parametrize("way", ["cancel", "block", "timeout"])
def test_what_is_cancelled_leaves_the_server(client, way):
    stream = client.stream(
        "It was", max_tokens=1000000, ignore_eos=True, timeout=5 if way == "timeout" else 600
    )
    next(stream)
    assert client.load().requests_running == 1
    if way == "cancel":
        stream.cancel()
    elif way == "block":
        with stream:
            pass
    else:
        with pytest.raises(recurve.DeadlineExceededError):
            list(stream)
    while client.load().requests_running:  # each asks the server; the test's own limit ends it
        pass


def test_asynchronous_sessions_are_entered_or_awaited(address):
    async def both():
        async with recurve.AsyncClient(address) as client:
            async with client.session() as entered:
                await entered.generate("It was", max_tokens=2)
                async with entered.fork() as fork:
                    assert (await fork.get()).position == (await entered.get()).position
            awaited = await client.session(entered.name)
            assert (await awaited.get()).position == 0
            await awaited.close()

    asyncio.run(both())


def test_a_task_that_is_cancelled_ends_its_request(address):
    async def cancel():
        async with recurve.AsyncClient(address) as client, client.session() as session:
            begun = asyncio.Event()

            async def read():
                async for _ in session.stream("It was", max_tokens=1000000, ignore_eos=True):
                    begun.set()

            task = asyncio.create_task(read())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.generate("x", max_tokens=1)).ids

    asyncio.run(cancel())


def test_a_score_whose_task_is_cancelled_ends(address):
    async def endless(asked):
        while True:
            asked.set()
            yield "It was a dark night. " * 1000

    async def cancel():
        async with recurve.AsyncClient(address) as client:
            asked = asyncio.Event()
            task = asyncio.create_task(client.score(endless(asked)))
            await asked.wait()
            while not (await client.load()).requests_running:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while (await client.load()).requests_running:
                pass

    asyncio.run(cancel())


def test_a_score_reads_an_asynchronous_iterator(address):
    async def parts():
        for part in ("It was ", b"a dark ", "night"):
            yield part

    async def broken():
        yield "It was"
        raise OSError("the disk is gone")

    async def score():
        async with recurve.AsyncClient(address) as client:
            whole = await client.score("It was a dark night")
            assert (await client.score(parts())).sum_logprob == whole.sum_logprob
            with pytest.raises(OSError, match="the disk is gone"):
                await client.score(broken())

    asyncio.run(score())


def test_a_durable_session_keeps_what_it_has_answered(connect, chat_model, tmp_path):
    flags = ("--state-dir", tmp_path / "states")
    with Server(chat_model, *flags) as server:
        client = connect(server.address)
        session = client.session("kept", durability="local")
        first = session.generate("It was", max_tokens=5, **GREEDY)
        assert session.get().durability == "local"
        session.generate(max_tokens=5, durability="none", **GREEDY)
        plain = client.session("plain")
        with pytest.raises(recurve.InvalidArgumentError, match="not durable"):
            plain.generate("It was", max_tokens=1, durability="local")
        with pytest.raises(ValueError, match="durability must be one of"):
            session.generate("x", max_tokens=1, durability="maybe")
        server.kill()
    with Server(chat_model, *flags) as server:
        client = connect(server.address)
        info = client.session("kept", create=False).get()
        assert info.position >= first.usage.session_position
        assert "plain" not in names(client)
