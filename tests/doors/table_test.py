"""The same request gets the same answer, or the same refusal, through every door.

Each row is put to each door over a real socket; what comes is compared to the bit with what our own
protocol's client gets.
"""

import itertools
import json
import threading

import doors
import pytest
from doors import Answer, Refusal

TEXT = "It was a dark and stormy"
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
SEEDED = {"temperature": 1, "seed": 7, "max_tokens": 24, "ignore_eos": True}

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
    "the model's own end": {"temperature": 1, "seed": 3, "max_tokens": 400, "logit_bias": {1: 6}},
    "an end that must wait": {"temperature": 0, "max_tokens": 20, "min_tokens": 5},
    "stop string": {**GREEDY, "stop": ["the"]},
    "stop strings, kept": {**GREEDY, "stop": ["zebra", " of"], "include_stop": True},
    "stop ids": {**GREEDY, "stop_token_ids": list(range(300, 364))},
    "three answers": {**SEEDED, "n": 3},
    "three that end apart": {**SEEDED, "n": 3, "stop": ["e"]},
    "logprobs": {**SEEDED, "logprobs": 0},
    "logprobs of others too": {**SEEDED, "logprobs": 3},
    "logprobs of two answers": {**SEEDED, "logprobs": 2, "n": 2},
    "no BOS": {**GREEDY, "add_special_tokens": False},
    "important": {**GREEDY, "priority": 3},
    "ids": {**GREEDY, "prompt": [5, 400, 401, 17]},
    "one id": {**GREEDY, "prompt": [5]},
    "characters of all lengths": {**GREEDY, "prompt": "naïve Ω 漢字 🜚\n\ttabs \\ \"quotes\""},
}

# What is refused: the request, and the code.
INVALID = "INVALID_ARGUMENT"
REFUSED = {
    "negative temperature": ({"temperature": -1}, INVALID),
    "too hot": ({"temperature": 1001}, INVALID),
    "more than all of top_p": ({"top_p": 1.5}, INVALID),
    "nothing of top_p": ({"top_p": 0}, INVALID),
    "negative top_k": ({"top_k": -2}, INVALID),
    "min_p": ({"min_p": 2}, INVALID),
    "typical_p": ({"typical_p": -0.5}, INVALID),
    "no repetition penalty": ({"repetition_penalty": 0}, INVALID),
    "presence penalty": ({"presence_penalty": 3}, INVALID),
    "frequency penalty": ({"frequency_penalty": -3}, INVALID),
    "bias": ({"logit_bias": {300: 1001}}, INVALID),
    "bias of no id": ({"logit_bias": {10**6: 1}}, INVALID),
    "nothing allowed": ({"allowed_token_ids": [300], "logit_bias": {300: -2000}}, INVALID),
    "negative length": ({"max_tokens": -1}, INVALID),
    "too long an answer": ({"max_tokens": 50_001}, INVALID),
    "more tokens than most": ({"max_tokens": 5, "min_tokens": 6}, INVALID),
    "an empty stop string": ({"stop": [""]}, INVALID),
    "too many stop strings": ({"stop": [str(i) for i in range(17)]}, INVALID),
    "too long a stop string": ({"stop": ["x" * 1025]}, INVALID),
    "too many stop ids": ({"stop_token_ids": list(range(65))}, INVALID),
    "a stop id that is none": ({"stop_token_ids": [10**6]}, INVALID),
    "no answer": ({"n": 0}, INVALID),
    "more answers than slots": ({"n": 9}, INVALID),
    "logprobs of too many": ({"logprobs": 101}, INVALID),
    "too important": ({"priority": 11}, INVALID),
    "an id that is none": ({"prompt": [5, 10**6]}, INVALID),
    "a negative id": ({"prompt": [5, -1]}, INVALID),
    "too long a prompt": ({"prompt": "word " * 600}, INVALID),
    "too many ids": ({"prompt": [5] * 501}, INVALID),
    "an empty text": ({"prompt": ""}, INVALID),
    "no ids": ({"prompt": []}, INVALID),
    "nothing at all": ({"prompt": "", "add_special_tokens": False}, INVALID),
    "a session that is none": ({"session": "nobody"}, "NOT_FOUND"),
    "no name of a session": ({"session": "no name"}, INVALID),
}


def others(every_door, row):
    return [door for door in every_door[1:] if not set(door.LACKS) & row.keys()]


def with_prompt(row):
    return {"prompt": TEXT, **row}


@pytest.mark.parametrize("name", ANSWERED)
def test_the_answer_is_the_same(name, every_door, own):
    row = with_prompt(ANSWERED[name])
    wanted = own.ask(**row)
    assert isinstance(wanted, Answer), wanted
    assert any(wanted.texts), "or the row says nothing"
    ids = own.ids
    for door in others(every_door, row):
        assert door.ask(**row) == wanted, door.name
        if isinstance(door, doors.KserveDoor) and row.get("n", 1) == 1:
            assert door.ids == ids, door.name


def test_the_rows_differ(own):
    """A parameter that did nothing would be the same through every door, too."""
    plain = {name: own.ask(**with_prompt(row)) for name, row in ANSWERED.items()}
    by_seed = ("hot", "top_k", "top_p", "min_p", "typical_p", "all filters", "allowed ids", "largest seed")
    by_none = ("repetition penalty", "presence penalty", "frequency penalty", "bias", "one token", "stop string",
               "stop ids", "no BOS", "ids", "characters of all lengths")
    for name in by_seed:
        assert plain[name].texts != plain["seeded"].texts, name
    for name in by_none:
        assert plain[name].texts != plain["greedy"].texts, name
    assert plain["the model's own end"].reasons == ("stop",)


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_is_the_same(name, every_door, own):
    row, code = REFUSED[name]
    row = with_prompt(row)
    wanted = own.ask(**row)
    assert isinstance(wanted, Refusal) and wanted.code == code, wanted
    for door in others(every_door, row):
        got = door.ask(**row)
        assert isinstance(got, Refusal), (door.name, got)
        assert code in got.code.split("|") or got.code == "", (door.name, got)
        assert sentence(got) == sentence(wanted), door.name


def sentence(refusal):
    """Without the names that doors have for the field."""
    names = ("sequence_id must consist", "name must consist"), ("session must consist", "name must consist")
    message = refusal.message
    for name, common in names:
        message = message.replace(name, common)
    return message


@pytest.fixture
def session(own):
    """Makes sessions that have absorbed the same, each for one door."""
    made = []

    def make():
        opened = own.client.session()
        opened.generate(TEXT, max_tokens=8, temperature=0, ignore_eos=True)
        made.append(opened)
        return opened

    yield make
    for opened in made:
        opened.close()


SESSION_ROWS = {
    "goes on": {"prompt": "", **GREEDY},
    "with more": {"prompt": " And then", **SEEDED},
    "with ids": {"prompt": [400, 401], **GREEDY},
    "to a stop string": {"prompt": "", **GREEDY, "stop": ["e"]},
    "to nothing": {"prompt": " And then", "max_tokens": 0},
}


@pytest.mark.parametrize("name", SESSION_ROWS)
def test_a_session_goes_on_the_same(name, every_door, own, session):
    row = SESSION_ROWS[name]

    def ask(door):
        on = session()
        got = door.ask(session=on.name, **row)
        after = on.get()
        return got, (after.position, after.pending_token, after.epoch)

    wanted, state = ask(own)
    assert isinstance(wanted, Answer), wanted
    for door in others(every_door, row):
        got, left = ask(door)
        assert (got.texts, got.reasons, got.generated_tokens) == (
            wanted.texts, wanted.reasons, wanted.generated_tokens), door.name
        assert left == state, door.name


def test_a_session_takes_one_answer(every_door, own, session):
    row = {"prompt": TEXT, "session": session().name, "n": 2}
    wanted = own.ask(**row)
    assert wanted.code == INVALID
    for door in every_door[1:]:
        assert sentence(door.ask(**row)) == sentence(wanted), door.name


def test_a_busy_session_says_so(every_door, own, session):
    busy = session()
    started = threading.Event()
    go_on = threading.Event()

    def hold():
        with busy.stream("", max_tokens=50_000, ignore_eos=True) as stream:
            next(iter(stream))
            started.set()
            go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert started.wait(60)
        row = {"prompt": "", "session": busy.name, "max_tokens": 3}
        wanted = own.ask(**row)
        assert wanted.code == "FAILED_PRECONDITION"
        for door in every_door[1:]:
            got = door.ask(**row)
            assert got.message == wanted.message, door.name
            assert "FAILED_PRECONDITION" in got.code or got.code == "", door.name
    finally:
        go_on.set()
        holder.join()


# What a protocol with types cannot say; the two that have JSON refuse it alike.
NOT_THE_TYPE = {
    "a text for a number": {"temperature": "hot"},
    "a list for a number": {"temperature": [1]},
    "a flag for a number": {"top_k": True},
    "half an answer": {"n": 1.5},
    "more than 32 bits": {"max_tokens": 2**40},
    "more than 64 bits": {"seed": 2**70},
    "a number for a text": {"stop": 5},
    "a number among texts": {"stop": ["a", 5]},
    "a text for ids": {"stop_token_ids": "x"},
    "a text among ids": {"allowed_token_ids": [1, "x"]},
    "a list for a map": {"logit_bias": [1]},
    "a bias of no id": {"logit_bias": {"x": 1}},
    "a text for a bias": {"logit_bias": {"1": "x"}},
    "a number for a flag": {"ignore_eos": 2},
    "what is not done here": {"best_of": 2},
    "nor this": {"use_beam_search": True},
    "and not this": {"truncate_prompt_tokens": 5},
}


@pytest.mark.parametrize("name", NOT_THE_TYPE)
def test_what_is_not_of_the_type_is_refused_by_name(name, every_door):
    ((field, value),) = NOT_THE_TYPE[name].items()
    for door in every_door:
        if isinstance(door, doors.HttpDoor):
            status, text = door.post({"model": doors.MODEL, "prompt": TEXT, field: value})
            assert status == 400, door.name
            assert field in json.loads(text)["error"]["message"], door.name
        elif isinstance(door, doors.KserveDoor):
            got = door.infer(TEXT, {field: value})
            assert got.code in (INVALID, ""), (door.name, got)
            assert field in got.message, door.name


def test_what_changes_nothing_is_taken(every_door, own):
    """Null is as good as nothing, and what nobody knows is left alone."""
    wanted = own.ask(prompt=TEXT, **GREEDY)
    extra = {"user": "me", "nobody_knows": {"this": [1]}, "stop": None, "best_of": None, "n": 1, "length_penalty": 1.0}
    for door in every_door[1:]:
        assert door.ask(prompt=TEXT, **GREEDY, **extra) == wanted, door.name


def test_all_at_once_is_the_same(every_door, own):
    """Whatever runs beside it: every row through every door, all under way together."""
    rows = {name: with_prompt(row) for name, row in ANSWERED.items() if "priority" not in row}
    wanted = {name: own.ask(**row) for name, row in rows.items()}
    wrong = []

    def run(at, door):  # each door begins elsewhere in the table
        for name, row in itertools.islice(itertools.cycle(rows.items()), 5 * at, 5 * at + len(rows)):
            got = door.ask(**row)
            if got != wanted[name]:
                wrong.append((door.name, name, got))

    threads = [threading.Thread(target=run, args=[at, door]) for at, door in enumerate(every_door)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
