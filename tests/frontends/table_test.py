"""The same request gets the same answer, or the same refusal, from every frontend.

Each row goes to each frontend over a real socket. The answer must equal that of recurve.v1 to the bit.
"""

import itertools
import json
import re
import threading

import frontends
import pytest
from frontends import Answer, Refusal

TEXT = "It was a dark and stormy"
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
SEEDED = {"temperature": 1, "seed": 7, "max_tokens": 24, "ignore_eos": True}
CONSTRAINED = {"temperature": 1, "seed": 7, "max_tokens": 60,
               "json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 20}}

ANSWERED = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "largest seed": {**SEEDED, "seed": 2**63 - 1},
    "hot": {**SEEDED, "temperature": 2.5},
    "top_k": {**SEEDED, "top_k": 3},
    "top_p": {**SEEDED, "top_p": 0.3},
    "min_p": {**SEEDED, "min_p": 0.2},
    "typical_p": {**SEEDED, "typical_p": 0.4},
    "repetition penalty": {**GREEDY, "repetition_penalty": 1.7},
    "presence penalty": {**GREEDY, "presence_penalty": 1.5},
    "frequency penalty": {**GREEDY, "frequency_penalty": 1.25},
    "all filters": {**SEEDED, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95,
                    "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1},
    "bias": {**GREEDY, "logit_bias": {300: 5.5, 301: -3, 302: 1000}},
    "allowed ids": {**SEEDED, "allowed_token_ids": [300, 301, 302, 303]},
    "one token": {**GREEDY, "max_tokens": 1},
    "the model's EOS": {"temperature": 1, "seed": 3, "max_tokens": 400, "logit_bias": {1: 6}},
    "EOS after min_tokens": {"temperature": 0, "max_tokens": 20, "min_tokens": 5},
    "stop string": {**GREEDY, "stop": ["the"]},
    "stop strings, included": {**GREEDY, "stop": ["zebra", " of"], "include_stop": True},
    "stop ids": {**GREEDY, "stop_token_ids": list(range(300, 364))},
    "three answers": {**SEEDED, "n": 3},
    "three that end at different tokens": {**SEEDED, "n": 3, "stop": ["e"]},
    "logprobs": {**SEEDED, "logprobs": 0},
    "logprobs of candidates too": {**SEEDED, "logprobs": 3},
    "logprobs of two answers": {**SEEDED, "logprobs": 2, "n": 2},
    "no BOS": {**GREEDY, "add_special_tokens": False},
    "priority": {**GREEDY, "priority": 3},
    "an initial state": {**GREEDY, "initial_state": "tale"},
    "an initial state, several answers": {**SEEDED, "initial_state": "tale", "n": 2},
    "an adapter": {**GREEDY, "adapter": "story"},
    "an adapter, several answers": {**SEEDED, "adapter": "law", "n": 2},
    "an adapter and an initial state": {**GREEDY, "adapter": "law", "initial_state": "tale"},
    "ids": {**GREEDY, "prompt": [5, 400, 401, 17]},
    "one id": {**GREEDY, "prompt": [5]},
    "a schema": CONSTRAINED,
    "a schema with white space": {**CONSTRAINED, "any_whitespace": True},
    "characters of all lengths": {**GREEDY, "prompt": "naïve Ω 漢字 🜚\n\ttabs \\ \"quotes\""},
}

# Refused requests, and their code.
INVALID = "INVALID_ARGUMENT"
REFUSED = {
    "unknown initial state": ({"initial_state": "tail"}, "NOT_FOUND"),
    "unknown adapter": ({"adapter": "lore"}, "NOT_FOUND"),
    "negative temperature": ({"temperature": -1}, INVALID),
    "too hot": ({"temperature": 1001}, INVALID),
    "top_p over 1": ({"top_p": 1.5}, INVALID),
    "top_p of 0": ({"top_p": 0}, INVALID),
    "negative top_k": ({"top_k": -2}, INVALID),
    "min_p": ({"min_p": 2}, INVALID),
    "typical_p": ({"typical_p": -0.5}, INVALID),
    "repetition penalty of 0": ({"repetition_penalty": 0}, INVALID),
    "presence penalty": ({"presence_penalty": 3}, INVALID),
    "frequency penalty": ({"frequency_penalty": -3}, INVALID),
    "bias": ({"logit_bias": {300: 1001}}, INVALID),
    "bias of an invalid id": ({"logit_bias": {10**6: 1}}, INVALID),
    "no allowed id left": ({"allowed_token_ids": [300], "logit_bias": {300: -2000}}, INVALID),
    "negative length": ({"max_tokens": -1}, INVALID),
    "too long an answer": ({"max_tokens": 50_001}, INVALID),
    "min_tokens over max_tokens": ({"max_tokens": 5, "min_tokens": 6}, INVALID),
    "an empty stop string": ({"stop": [""]}, INVALID),
    "too many stop strings": ({"stop": [str(i) for i in range(17)]}, INVALID),
    "too long a stop string": ({"stop": ["x" * 1025]}, INVALID),
    "too many stop ids": ({"stop_token_ids": list(range(65))}, INVALID),
    "an invalid stop id": ({"stop_token_ids": [10**6]}, INVALID),
    "n of 0": ({"n": 0}, INVALID),
    "more choices than slots": ({"n": 9}, INVALID),
    "logprobs of too many": ({"logprobs": 101}, INVALID),
    "too high a priority": ({"priority": 11}, INVALID),
    "an invalid id": ({"prompt": [5, 10**6]}, INVALID),
    "a negative id": ({"prompt": [5, -1]}, INVALID),
    "too long a prompt": ({"prompt": "word " * 600}, INVALID),
    "too many ids": ({"prompt": [5] * 501}, INVALID),
    "an empty text": ({"prompt": ""}, INVALID),
    "no ids": ({"prompt": []}, INVALID),
    "no token": ({"prompt": "", "add_special_tokens": False}, INVALID),
    "an unknown session": ({"session": "unknown"}, "NOT_FOUND"),
    "an invalid name of a session": ({"session": "no name"}, INVALID),
}


def others(every_frontend, row):
    return [frontend for frontend in every_frontend[1:] if not set(frontend.LACKS) & row.keys()]


def with_prompt(row):
    return {"prompt": TEXT, **row}


@pytest.mark.parametrize("name", ANSWERED)
def test_the_answer_is_the_same(name, every_frontend, own):
    row = with_prompt(ANSWERED[name])
    wanted = own.ask(**row)
    assert isinstance(wanted, Answer), wanted
    assert any(wanted.texts), "the row would prove nothing"
    ids = own.ids
    for frontend in others(every_frontend, row):
        assert frontend.ask(**row) == wanted, frontend.name
        if isinstance(frontend, frontends.KserveFrontend) and row.get("n", 1) == 1:
            assert frontend.ids == ids, frontend.name


def test_the_rows_differ(own):
    """An ignored parameter would also give the same answer from every frontend."""
    plain = {name: own.ask(**with_prompt(row)) for name, row in ANSWERED.items()}
    by_seed = ("hot", "top_k", "top_p", "min_p", "typical_p", "all filters", "allowed ids", "largest seed")
    by_none = ("repetition penalty", "presence penalty", "frequency penalty", "bias", "one token", "stop string",
               "stop ids", "no BOS", "ids", "characters of all lengths")
    for name in by_seed:
        assert plain[name].texts != plain["seeded"].texts, name
    for name in by_none:
        assert plain[name].texts != plain["greedy"].texts, name
    assert plain["the model's EOS"].reasons == ("stop",)
    assert ", " in plain["a schema"].texts[0]
    assert re.search(r",\S", plain["a schema with white space"].texts[0])


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_is_the_same(name, every_frontend, own):
    row, code = REFUSED[name]
    row = with_prompt(row)
    wanted = own.ask(**row)
    assert isinstance(wanted, Refusal) and wanted.code == code, wanted
    for frontend in others(every_frontend, row):
        got = frontend.ask(**row)
        assert isinstance(got, Refusal), (frontend.name, got)
        assert code in got.code.split("|") or got.code == "", (frontend.name, got)
        assert sentence(got) == sentence(wanted), frontend.name


def sentence(refusal):
    """The message without the frontend's name for the field."""
    names = (
        ("sequence_id must consist", "name must consist"),
        ("session must consist", "name must consist"),
        ("stop_strings must", "stop must"),
    )
    message = refusal.message
    for name, common in names:
        message = message.replace(name, common)
    return message


@pytest.fixture
def session(own):
    """Opens sessions with the same content, one per frontend."""
    sessions = []

    def make():
        opened = own.client.session()
        opened.generate(TEXT, max_tokens=8, temperature=0, ignore_eos=True)
        sessions.append(opened)
        return opened

    yield make
    for opened in sessions:
        opened.close()


SESSION_ROWS = {
    "no prompt": {"prompt": "", **GREEDY},
    "a text": {"prompt": " And then", **SEEDED},
    "ids": {"prompt": [400, 401], **GREEDY},
    "stop string": {"prompt": "", **GREEDY, "stop": ["e"]},
    "no tokens": {"prompt": " And then", "max_tokens": 0},
}


@pytest.mark.parametrize("name", SESSION_ROWS)
def test_a_session_continues_the_same(name, every_frontend, own, session):
    row = SESSION_ROWS[name]

    def ask(frontend):
        on = session()
        got = frontend.ask(session=on.name, **row)
        info = on.get()
        return got, (info.position, info.pending_token, info.epoch)

    wanted, state = ask(own)
    assert isinstance(wanted, Answer), wanted
    for frontend in others(every_frontend, row):
        got, after = ask(frontend)
        assert (got.texts, got.reasons, got.generated_tokens) == (
            wanted.texts, wanted.reasons, wanted.generated_tokens), frontend.name
        assert after == state, frontend.name


def test_a_session_takes_one_answer(every_frontend, own, session):
    row = {"prompt": TEXT, "session": session().name, "n": 2}
    wanted = own.ask(**row)
    assert wanted.code == INVALID
    for frontend in every_frontend[1:]:
        assert sentence(frontend.ask(**row)) == sentence(wanted), frontend.name


def test_a_busy_session_is_refused(every_frontend, own, session):
    busy = session()
    started = threading.Event()
    resume = threading.Event()

    def hold():
        with busy.stream("", max_tokens=50_000, ignore_eos=True) as stream:
            next(iter(stream))
            started.set()
            resume.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert started.wait(60)
        row = {"prompt": "", "session": busy.name, "max_tokens": 3}
        wanted = own.ask(**row)
        assert wanted.code == "FAILED_PRECONDITION"
        for frontend in every_frontend[1:]:
            got = frontend.ask(**row)
            assert got.message == wanted.message, frontend.name
            assert "FAILED_PRECONDITION" in got.code or got.code == "", frontend.name
    finally:
        resume.set()
        holder.join()


# Values that a typed protocol cannot carry; the two with JSON refuse them in the same way.
NOT_THE_TYPE = {
    "a text for a number": {"temperature": "hot"},
    "a list for a number": {"temperature": [1]},
    "a flag for a number": {"top_k": True},
    "a fraction for an integer": {"n": 1.5},
    "more than 32 bits": {"max_tokens": 2**40},
    "more than 64 bits": {"seed": 2**70},
    "a number for a text": {"stop": 5},
    "a number in a list of texts": {"stop": ["a", 5]},
    "a text for ids": {"stop_token_ids": "x"},
    "a text in a list of ids": {"allowed_token_ids": [1, "x"]},
    "a list for a map": {"logit_bias": [1]},
    "a bias of a text": {"logit_bias": {"x": 1}},
    "a text for a bias": {"logit_bias": {"1": "x"}},
    "a number for a flag": {"ignore_eos": 2},
    "best_of": {"best_of": 2},
    "use_beam_search": {"use_beam_search": True},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 5},
}


@pytest.mark.parametrize("name", NOT_THE_TYPE)
def test_a_wrong_type_is_refused_by_name(name, every_frontend):
    ((field, value),) = NOT_THE_TYPE[name].items()
    for frontend in every_frontend:
        if isinstance(frontend, frontends.HttpFrontend):
            status, text = frontend.post({"model": frontends.MODEL, "prompt": TEXT, field: value})
            assert status == 400, frontend.name
            assert field in json.loads(text)["error"]["message"], frontend.name
        elif isinstance(frontend, frontends.KserveFrontend):
            got = frontend.infer(TEXT, {field: value})
            assert got.code in (INVALID, ""), (frontend.name, got)
            assert field in got.message, frontend.name


def test_parameters_without_effect_are_accepted(every_frontend, own):
    """Null means unset, and unknown parameters are ignored."""
    wanted = own.ask(prompt=TEXT, **GREEDY)
    extra = {"user": "me", "unknown": {"this": [1]}, "stop": None, "best_of": None, "n": 1, "length_penalty": 1.0}
    for frontend in every_frontend[1:]:
        assert frontend.ask(prompt=TEXT, **GREEDY, **extra) == wanted, frontend.name


EMBEDDED = {
    "a text": {"texts": TEXT},
    "several": {"texts": [TEXT, "naïve Ω 漢字 🜚", "a"]},
    "ids": {"texts": [5, 400, 401, 17]},
    "lists of ids": {"texts": [[5, 400], [5]]},
    "texts and ids": {"texts": [TEXT, [5, 400]]},
    "the mean": {"texts": [TEXT, "a"], "pooling": "mean"},
    "eight dimensions": {"texts": TEXT, "dimensions": 8},
    "no BOS": {"texts": TEXT, "add_special_tokens": False},
}
NOT_EMBEDDED = {
    "no input": {"texts": []},
    "an empty list of ids": {"texts": ["a", []]},
    "no token": {"texts": "", "add_special_tokens": False},
    "an invalid id": {"texts": [[5, 10**6]]},
    "too long an input": {"texts": "word " * 600},
    "too many tokens in all": {"texts": ["word " * 200] * 4},
    "too many inputs": {"texts": ["a"] * 2049},
    "no dimensions": {"texts": "a", "dimensions": 0},
    "too many dimensions": {"texts": "a", "dimensions": 10**6},
    "too high a priority": {"texts": "a", "priority": 11},
}


def embedding_frontends(every_frontend):
    return [f for f in every_frontend if hasattr(f, "embed")]


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_embedding_is_the_same(name, every_frontend, own):
    wanted = own.embed(**EMBEDDED[name])
    assert not isinstance(wanted, Refusal), wanted
    for frontend in embedding_frontends(every_frontend)[1:]:
        assert frontend.embed(**EMBEDDED[name]) == wanted, frontend.name


@pytest.mark.parametrize("name", NOT_EMBEDDED)
def test_the_refusal_of_an_embedding_is_the_same(name, every_frontend, own):
    wanted = own.embed(**NOT_EMBEDDED[name])
    assert isinstance(wanted, Refusal) and wanted.code == INVALID, wanted
    for frontend in embedding_frontends(every_frontend)[1:]:
        got = frontend.embed(**NOT_EMBEDDED[name])
        assert isinstance(got, Refusal) and got.message == wanted.message, (frontend.name, got)


def test_concurrent_requests_get_the_same(every_frontend, own):
    """With concurrent requests: every row to every frontend, all at the same time."""
    rows = {name: with_prompt(row) for name, row in ANSWERED.items() if "priority" not in row}
    wanted = {name: own.ask(**row) for name, row in rows.items()}
    wrong = []

    def run(at, frontend):  # each frontend starts at another row
        for name, row in itertools.islice(itertools.cycle(rows.items()), 5 * at, 5 * at + len(rows)):
            got = frontend.ask(**row)
            if got != wanted[name]:
                wrong.append((frontend.name, name, got))

    threads = [threading.Thread(target=run, args=[at, frontend]) for at, frontend in enumerate(every_frontend)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
