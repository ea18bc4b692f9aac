"""How objects of the client are printed."""

import asyncio
import pickle

import pytest
import recurve


def test_a_client_shows_its_address_and_no_key():
    with recurve.Client("127.0.0.1:1", key="secret") as client:
        assert repr(client) == "<recurve.Client of 127.0.0.1:1>"
    with recurve.Client("127.0.0.1:1", tls=recurve.Tls()) as client:
        assert repr(client) == "<recurve.Client of 127.0.0.1:1 with TLS>"

    async def shown():
        async with recurve.AsyncClient("127.0.0.1:1") as client:
            return repr(client)

    assert asyncio.run(shown()) == "<recurve.AsyncClient of 127.0.0.1:1>"


def test_sessions_and_streams_show_their_names_and_state(address):
    with recurve.Client(address) as client, client.session("shown") as session:
        assert repr(session) == f"<recurve.Session 'shown' of {address}>"
        stream = session.stream("It was", max_tokens=3, request_id="r-1")
        next(stream)
        assert repr(stream) == "<recurve.Stream request 'r-1' running>"
        stream.result()
        assert repr(stream) == "<recurve.Stream request 'r-1' ended>"
        session.close()


def test_answers_are_short_whatever_they_hold(address):
    with recurve.Client(address) as client:
        answer = client.generate("It was", max_tokens=200, temperature=0, ignore_eos=True, logprobs=5)
        assert repr(answer).startswith(f"Generation(text={answer.text[:20]!r}"[:-1])
        assert repr(answer).endswith(", tokens=200, finish_reason='length')")
        two = client.generate("It was", max_tokens=3, n=2)
        assert repr(two) == f"Generation(text={two.text!r}, tokens=3, finish_reason='length', choices=2)"
        vectors = client.embed(["a", "b"])
        assert repr(vectors).startswith("Embeddings(vectors=((")
        score = client.score("It was a dark night", top=3)
        for one in (answer, answer.choices[0], vectors, score, client.tokenize("It was " * 100)):
            assert len(repr(one)) < 800, repr(one)
        for chunk in client.stream("It was", max_tokens=1):
            assert repr(chunk).startswith("Chunk(choice=0, ") and "tool_calls" not in repr(chunk)


def test_an_error_is_the_servers_sentence_also_from_another_process(address):
    with recurve.Client(address) as client, pytest.raises(recurve.NotFoundError) as raised:
        client.session("none", create=False)
    error = raised.value
    assert str(error) == f"NOT_FOUND: {error.message}" and "none" in error.message
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), repr(copy)) == (type(error), str(error), repr(error))
    busy = recurve.ResourceExhaustedError("full", retry_after=2.5)
    copy = pickle.loads(pickle.dumps(busy))
    assert (str(copy), copy.retry_after) == ("RESOURCE_EXHAUSTED: full", 2.5)
