"""Answers that are kept to what a request says they must be, by both clients."""

import json
import pathlib
import re

import pytest
import recurve

PROMPT = "It was a dark night, and"
SCHEMA = json.loads((pathlib.Path(__file__).parents[1] / "person.json").read_text())


def check(text):
    said = json.loads(text)
    assert list(said) == ["name", "age", "kind"]
    assert len(said["name"]) <= 12
    assert 0 <= said["age"] <= 120
    assert said["kind"] in ("cat", "dog")


def test_an_answer_is_of_its_schema(client):
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        answer = client.generate(PROMPT, json_schema=schema, max_tokens=400, seed=5)
        assert answer.finish_reason == "eos"
        check(answer.text)


def test_an_answer_is_of_each_other_form(client):
    def text(**constraint):
        return client.generate(PROMPT, max_tokens=200, seed=3, **constraint).text

    assert text(choice=["yes", "no, never"]) in ("yes", "no, never")
    assert re.fullmatch("[a-c]{2}-[0-9]{3}", text(regex="[a-c]{2}-[0-9]{3}"))
    assert text(grammar='root ::= "(" root ")" | "x"').strip("()") == "x"
    tags = {
        "triggers": ["<n="],
        "structures": [{"begin": "<n=", "schema": {"type": "integer", "maximum": 9, "minimum": 0}, "end": ">"}],
        "required": True,
        "single": True,
    }
    assert re.search("<n=[0-9]>", text(structural_tag=tags))


def test_any_json_parses_where_it_is_not_cut(client):
    answers = [
        client.generate(PROMPT, json_schema=True, max_tokens=200, seed=seed) for seed in range(6)
    ]
    ended = [answer for answer in answers if answer.finish_reason == "eos"]
    assert ended
    for answer in ended:
        json.loads(answer.text)


def test_a_stream_and_a_seed_give_the_same_and_choices_differ(client):
    asked = {"json_schema": SCHEMA, "max_tokens": 400, "seed": 7}
    whole = client.generate(PROMPT, **asked)
    assert "".join(chunk.text for chunk in client.generate(PROMPT, stream=True, **asked)) == whole.text
    both = client.generate(PROMPT, n=3, **asked)
    assert both.choices[0].text == whole.text
    for choice in both.choices:
        check(choice.text)
    assert len({choice.text for choice in both.choices}) > 1


def test_json_is_compact_unless_white_space_is_allowed(client):
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    # A bias on what begins with white space has no effect where none may come.
    spaces = {id: 100 for id in client.tokenize(" \n", add_special_tokens=False).ids}
    asked = {"json_schema": schema, "max_tokens": 90, "temperature": 0, "logit_bias": spaces}
    compact = client.generate(PROMPT, **asked)
    assert (compact.text, compact.finish_reason) == ("[1, 1]", "eos")
    wide = client.generate(PROMPT, any_whitespace=True, **asked).text
    assert re.match(r"\[\s{3,16}1", wide), wide
    with pytest.raises(recurve.InvalidArgumentError, match="constraint must have a kind"):
        client.generate(PROMPT, any_whitespace=True)


def test_what_cuts_an_answer_says_so(client):
    cut = client.generate(PROMPT, json_schema=SCHEMA, max_tokens=4, seed=7)
    assert cut.finish_reason == "length"
    stopped = client.generate(PROMPT, json_schema=SCHEMA, max_tokens=400, seed=7, stop='"age')
    assert (stopped.finish_reason, stopped.choices[0].stop) == ("stop_string", '"age')
    assert '"name"' in stopped.text
    assert '"age' not in stopped.text


def test_a_session_goes_on_behind_an_answer(client):
    with client.session() as session:
        check(session.generate(PROMPT, json_schema=SCHEMA, max_tokens=400, seed=7).text)
        # The constraint was that request's.
        free = session.generate(" and then", max_tokens=4, ignore_eos=True)
        assert free.usage.generated_tokens == 4
        check(session.generate(" and", json_schema=SCHEMA, max_tokens=400, seed=7).text)


def test_what_is_not_enforced_is_refused_by_name(client):
    for constraint, named in (
        ({"json_schema": {"contains": {}}}, "contains at #"),
        ({"json_schema": {"type": "string", "minLength": 1001}}, "minLength at #"),
        ({"json_schema": {"type": "string", "format": "regex"}}, "format at #"),
        ({"regex": "(?=a)"}, "regular expression"),
        ({"grammar": "x ::= "}, "root rule"),
    ):
        with pytest.raises(recurve.InvalidArgumentError, match=named):
            client.generate(PROMPT, max_tokens=4, **constraint)
    with pytest.raises(TypeError, match="must have only one of regex and choice, got both"):
        client.generate(PROMPT, regex="a", choice=["a"])
