"""OpenAI's own client: the same tests at its current major and the one before."""

import base64
import json
import logging
import os
import pathlib
import re
import subprocess
import typing
import urllib.error
import urllib.request

import httpx
import openai
import pytest
from http_server import HttpServer

PROMPT = "Once upon a time"
GREEDY = {"model": "books", "temperature": 0}
HELLO = [{"role": "user", "content": "Good morning."}]


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["books"]
    model = client.models.retrieve("books")
    assert (model.owned_by, model.max_model_len) == ("recurve", 1 << 20)
    with pytest.raises(openai.NotFoundError, match='has "books"'):
        client.models.retrieve("gpt-5")


def test_a_completion_and_its_stream_are_the_same(client):
    whole = client.completions.create(prompt=PROMPT, max_tokens=12, **GREEDY)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert whole.system_fingerprint.startswith("fp_")
    chunks = list(
        client.completions.create(
            prompt=PROMPT,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_a_prompt_leaves_a_state_where_it_says(client):
    def asked(begin, end, **more):
        return client.completions.create(
            prompt=f"{begin * 60} {end * 40}", max_tokens=4, **GREEDY, extra_body=more
        )

    for begin, points in (("A grey cat sat. ", []), ("A brown dog ran. ", [len("A brown dog ran. ") * 60])):
        asked(begin, "One more. ", prefix_points=points)
        usage = asked(begin, "Then another. ").usage.prompt_tokens_details
        assert (usage.cached_tokens > 100) == bool(points)
    with pytest.raises(openai.BadRequestError, match="prefix_points must be a list"):
        asked("A bird sang. ", "And so. ", prefix_points="here")


def test_several_prompts_are_each_as_if_alone(client):
    prompts = [PROMPT, "Call me", "It was a dark"]
    alone = [
        client.completions.create(prompt=p, max_tokens=8, n=2, seed=3, model="books").choices
        for p in prompts
    ]
    together = client.completions.create(prompt=prompts, max_tokens=8, n=2, seed=3, model="books")
    assert [c.index for c in together.choices] == list(range(6))
    assert [c.text for c in together.choices] == [c.text for cs in alone for c in cs]
    assert together.usage.completion_tokens == 48


def test_embeddings(client):
    texts = [PROMPT, "The sea was grey.", "It rained."]
    found = client.embeddings.create(model="books", input=texts)  # asks for base64
    plain = client.embeddings.create(model="books", input=texts, encoding_format="float")
    assert [e.index for e in found.data] == [0, 1, 2]
    assert [e.embedding for e in found.data] == [
        pytest.approx(e.embedding, abs=1e-8) for e in plain.data
    ]
    assert all(abs(sum(x * x for x in e.embedding) - 1) < 1e-6 for e in found.data)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 8
    alone = client.embeddings.create(model="books", input=texts[1])
    assert alone.data[0].embedding == found.data[1].embedding
    ids = tokens_of(client, texts[2])
    by_ids = client.embeddings.create(model="books", input=[ids, ids[:2]], dimensions=16, user="me")
    assert [len(e.embedding) for e in by_ids.data] == [16, 16]
    mean = client.embeddings.create(model="books", input=texts, extra_body={"pooling": "mean"})
    assert mean.data[0].embedding != found.data[0].embedding
    for wrong, name in (({"dimensions": 10**6}, "dimensions"), ({"extra_body": {"pooling": "max"}}, "pooling")):
        with pytest.raises(openai.BadRequestError, match=name):
            client.embeddings.create(model="books", input="a", **wrong)


def tokens_of(client, text):
    url = str(client.base_url).replace("/v1/", "/tokenize")
    body = {"prompt": text, "add_special_tokens": False}
    return client.post(url, body=body, cast_to=object)["tokens"]


def test_echo_gives_what_is_known_of_the_prompt(client):
    text = f"{PROMPT} there was a"
    echo = client.completions.create(
        prompt=text, max_tokens=1, echo=True, logprobs=1, **GREEDY
    ).choices[0]
    assert echo.text.startswith(text)
    logprobs = echo.logprobs
    count = len(tokens_of(client, text)) + 1
    for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert len(getattr(logprobs, column)) == count, column
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens).strip() == echo.text.strip()
    # The prompt alone, and as a stream.
    prompt = client.completions.create(
        prompt=text, max_tokens=0, echo=True, logprobs=1, **GREEDY
    ).choices[0]
    assert prompt.text == text
    assert prompt.logprobs.token_logprobs == logprobs.token_logprobs[:-1]
    chunks = client.completions.create(
        prompt=text, max_tokens=1, echo=True, logprobs=1, stream=True, **GREEDY
    )
    parts = [c.choices[0] for c in chunks if c.choices]
    assert "".join(p.text for p in parts) == echo.text
    values = [v for p in parts if p.logprobs for v in p.logprobs.token_logprobs]
    assert values == logprobs.token_logprobs
    # Ids get no BOS that the client would have to know of.
    ids = tokens_of(client, text)
    by_id = client.completions.create(
        prompt=[ids, ids[:3]], max_tokens=1, echo=True, logprobs=0, **GREEDY
    )
    assert [len(c.logprobs.tokens) for c in by_id.choices] == [len(ids) + 1, 4]
    assert by_id.choices[0].logprobs.tokens[: len(ids)] == logprobs.tokens[:-1]


def test_the_likeliest_tokens_have_the_sampled_one_among_them(client):
    choice = client.completions.create(
        prompt=PROMPT, max_tokens=6, logprobs=2, temperature=2, seed=1, model="books"
    ).choices[0]
    for token, value, top in zip(
        choice.logprobs.tokens,
        choice.logprobs.token_logprobs,
        choice.logprobs.top_logprobs,
        strict=True,
    ):
        assert top[token] == value and len(top) in (2, 3)


def test_a_chat_and_its_stream_are_the_same(client):
    asked = {"messages": HELLO, "max_completion_tokens": 8, **GREEDY}
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, **asked)
    assert whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content) == 8
    stream = client.chat.completions.create(stream=True, **asked)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == whole.choices[0].message.content
    stopped = client.chat.completions.create(stop=text[3:5], **asked)
    assert stopped.choices[0].message.content == text[: text.index(text[3:5])]
    assert stopped.choices[0].finish_reason == "stop"


def test_what_another_prompt_has_left_counts_as_cached(client):
    asked = {"prompt": "All happy families are alike. " * 30, "max_tokens": 6, **GREEDY}
    cold = client.completions.create(extra_body={"prefix": "off"}, **asked)
    client.completions.create(**asked)
    warm = client.completions.create(**asked)
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < warm.usage.prompt_tokens_details.cached_tokens < warm.usage.prompt_tokens
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens
    assert warm.choices[0].text == cold.choices[0].text
    with pytest.raises(openai.BadRequestError, match="use-and-keep"):
        client.completions.create(extra_body={"prefix": "sometimes"}, **asked)


def test_a_session_needs_only_what_is_new(client):
    whole = client.completions.create(prompt=PROMPT, max_tokens=20, **GREEDY).choices[0].text
    client.post("/sessions", body={"session": "story"}, cast_to=object)
    first = client.completions.create(
        prompt=PROMPT, max_tokens=8, extra_body={"session": "story"}, **GREEDY
    )
    rest = client.completions.create(
        prompt=[], max_tokens=12, extra_headers={"x-recurve-session": "story"}, **GREEDY
    )
    assert first.choices[0].text + rest.choices[0].text == whole
    assert rest.usage.prompt_tokens_details.cached_tokens > 0
    client.delete("/sessions/story", cast_to=object)


class Recorder:
    """Counts the requests that a client sends, and keeps the last response's headers."""

    def __init__(self, server, **options):
        self.requests, self.headers = 0, {}
        module = __import__("httpx2") if openai.__version__.startswith("3.") else httpx
        http = module.Client(
            event_hooks={"request": [self._count], "response": [self._remember]}
        )
        self.client = openai.OpenAI(
            base_url=f"{server.url}/v1", http_client=http, **{"api_key": "none", **options}
        )

    def _count(self, _):
        self.requests += 1

    def _remember(self, response):
        self.headers = response.headers


def test_refusals_have_their_exceptions(client):
    for error, change in [
        (openai.NotFoundError, {"model": "gpt-5"}),
        (openai.BadRequestError, {"suffix": "the end"}),
        (openai.BadRequestError, {"best_of": 2}),
        (openai.BadRequestError, {"temperature": -1}),
        (openai.BadRequestError, {"prompt": [1, 10**6]}),
        (openai.NotFoundError, {"extra_body": {"session": "unheard-of"}}),
    ]:
        asked = {"model": "books", "prompt": PROMPT, "max_tokens": 1, **change}
        with pytest.raises(error) as raised:
            client.completions.create(**asked)
        assert raised.value.message and raised.value.request_id
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            messages=HELLO, response_format={"type": "xml"}, model="books"
        )
    assert raised.value.param == "response_format"


PERSON = json.loads((pathlib.Path(__file__).parents[2] / "clients/person.json").read_text())


def test_an_answer_is_what_its_schema_says(client):
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for temperature in (0, 1):
        answer = client.completions.create(
            model="books", prompt=PROMPT, max_tokens=400, temperature=temperature, seed=5,
            extra_body={"response_format": format},
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", choice
        said = json.loads(choice.text)
        assert list(said) == ["name", "age", "kind"], "in the schema's order"
        assert isinstance(said["name"], str) and len(said["name"]) <= 12
        assert 0 <= said["age"] <= 120 and said["kind"] in ("cat", "dog")


def test_an_answer_is_one_of_the_texts_or_matches(client):
    def text(**body):
        return client.completions.create(
            model="books", prompt=PROMPT, max_tokens=400, seed=5, extra_body=body
        ).choices[0].text

    assert text(guided_choice=["yes", "no, never"]) in ("yes", "no, never")
    assert re.fullmatch(r"[a-c]{2}-[0-9]{3}", text(guided_regex="^[a-c]{2}-[0-9]{3}$"))
    assert text(guided_grammar='root ::= "(" root ")" | "x"').strip("()") == "x"


def test_a_chat_is_kept_to_its_format(client):
    def chat(**format):
        return client.chat.completions.create(
            model="books", messages=[{"role": "user", "content": PROMPT}], max_tokens=400, temperature=1, seed=5,
            response_format=format,
        ).choices[0]

    said = chat(type="json_schema", json_schema={"name": "person", "schema": PERSON, "strict": True})
    assert said.finish_reason == "stop"
    assert list(json.loads(said.message.content)) == ["name", "age", "kind"]
    anything = chat(type="json_object")
    if anything.finish_reason == "stop":
        assert isinstance(json.loads(anything.message.content), dict)
    else:
        assert anything.finish_reason == "length" and anything.message.content.lstrip().startswith("{")
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    tags = chat(type="structural_tag", triggers=["<n="], structures=[{"begin": "<n=", "schema": digit, "end": ">"}],
                required=True, single=True)
    assert re.search("<n=[0-9]>", tags.message.content)


@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_that_is_not_enforced_is_refused_by_its_keyword(client, strict):
    schema = {"name": "n", "schema": {"contains": {"type": "null"}}, "strict": strict}
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(
            model="books", prompt=PROMPT,
            extra_body={"response_format": {"type": "json_schema", "json_schema": schema}})
    assert "contains at #" in raised.value.message


def test_a_stop_string_cuts_an_answer_that_is_kept_to_a_schema(client):
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": False}}
    asked = {"model": "books", "temperature": 1, "seed": 7, "max_tokens": 400}
    whole = client.completions.create(prompt=PROMPT, extra_body={"response_format": format}, **asked)
    assert whole.choices[0].finish_reason == "stop"
    text = whole.choices[0].text
    assert list(json.loads(text)) == list(PERSON["properties"])
    for stop in ('"age', "}"):
        cut = client.completions.create(
            prompt=PROMPT, stop=stop, extra_body={"response_format": format}, **asked).choices[0]
        assert (cut.finish_reason, cut.text) == ("stop", text[: text.index(stop)])
        chunks = list(client.completions.create(
            prompt=PROMPT, stop=stop, stream=True, extra_body={"response_format": format}, **asked))
        assert "".join(chunk.choices[0].text for chunk in chunks) == cut.text
        assert chunks[-1].choices[0].finish_reason == "stop"
    chat = {"messages": [{"role": "user", "content": PROMPT}], "response_format": format} | asked
    text = client.chat.completions.create(**chat).choices[0].message.content
    cut = client.chat.completions.create(stop=["never", '"age'], **chat).choices[0]
    assert (cut.finish_reason, cut.message.content) == ("stop", text[: text.index('"age')])


def test_what_stays_refused_is_not_tried_again(server):
    recorder = Recorder(server, max_retries=3)
    recorder.client.post("/sessions", body={"session": "taken"}, cast_to=object)
    recorder.requests = 0
    with pytest.raises(openai.ConflictError):
        recorder.client.post("/sessions", body={"session": "taken"}, cast_to=object)
    assert recorder.requests == 1
    assert recorder.headers["x-should-retry"] == "false"
    recorder.client.delete("/sessions/taken", cast_to=object)


def test_what_is_full_is_tried_again_when_it_says(caplog, tmp_path):
    """A tenant that has spent what it may in a minute gets 10 tokens a second back."""
    recurve, file = pathlib.Path(os.environ["RECURVE_BIN"]) / "recurve", tmp_path / "keys.json"
    key = subprocess.run([recurve, "keys", "new", "--file", file, "--tenant", "one"],
                         check=True, text=True, capture_output=True).stdout.split()[-1]
    content = json.loads(file.read_text())
    content["tenants"] = {"one": {"tokens_per_minute": 600}}
    file.write_text(json.dumps(content))
    caplog.set_level(logging.INFO, "openai")
    told = []

    class Listening(Recorder):
        def _remember(self, response):
            if response.status_code == 429:
                told.append(float(response.headers["retry-after-ms"]) / 1000)

    with HttpServer("--keys", file) as server:
        recorder = Listening(server, api_key=key, max_retries=2)
        asked = {"prompt": [5] * 630, "max_tokens": 1, **GREEDY}
        for requests in (1, 3):  # the second is refused once
            assert recorder.client.completions.create(**asked).usage.completion_tokens == 1
            assert recorder.requests == requests
    waits = [float(found[1]) for found in re.finditer(r"Retrying .* in ([\d.]+) seconds", caplog.text)]
    assert waits == pytest.approx(told) and 0 < waits[0] < 60


def test_a_request_has_the_id_that_the_client_gave_it(server):
    recorder = Recorder(server)
    asked = {"prompt": PROMPT, "max_tokens": 1, **GREEDY}
    answer = recorder.client.completions.create(extra_headers={"x-request-id": "mine"}, **asked)
    assert recorder.headers["x-request-id"] == "mine" and answer._request_id == "mine"
    assert recorder.client.completions.create(**asked)._request_id.startswith("r-")


def test_a_response_and_its_stream_are_the_same(client):
    asked = {"input": "Good morning.", "max_output_tokens": 8, **GREEDY}
    whole = client.responses.create(store=False, **asked)
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 8 and whole.output_text
    events = list(client.responses.create(store=False, stream=True, **asked))
    assert [e.type for e in events][:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].type == "response.incomplete"
    stop = {"stop": text[3:5]}
    with client.responses.stream(store=False, extra_body=stop, **asked) as stream:
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == text[: text.index(text[3:5])]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_conversations_branch_from_a_response(client):
    more = {"max_output_tokens": 10, **GREEDY}
    first = client.responses.create(input="Who are you?", **more)
    assert client.responses.retrieve(first.id) == first
    ways = [
        client.responses.create(input=text, previous_response_id=first.id, **more)
        for text in ("Sing.", "Be quiet.", "Sing.")
    ]
    assert ways[0].output_text == ways[2].output_text != ways[1].output_text
    counted = client.responses.input_tokens.count(input="Sing.", previous_response_id=first.id)
    assert counted.input_tokens == ways[0].usage.input_tokens
    absorbed = first.usage.total_tokens - 1  # its last token is pending
    assert [w.usage.input_tokens_details.cached_tokens for w in ways] == [absorbed] * 3
    # Running requests are not stored: they have no name and cannot be read.
    sessions = client.get("/sessions", cast_to=object)
    assert sessions["data"] == []
    for name in (first.id, f"~{first.id}"):
        with pytest.raises(openai.APIStatusError):
            client.get(f"/sessions/{name}", cast_to=object)
    # Other instructions: the conversation is read anew.
    other = client.responses.create(
        input="Sing.", previous_response_id=first.id, instructions="Be brief.", **more
    )
    assert other.usage.input_tokens_details.cached_tokens == 0
    assert other.usage.input_tokens > ways[0].usage.input_tokens
    anew = client.responses.input_tokens.count(
        input="Sing.", previous_response_id=first.id, instructions="Be brief."
    )
    assert anew.input_tokens == other.usage.input_tokens
    # A branch outlives what it branched from.
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.create(input="Sing.", previous_response_id=first.id, **more)
    on = client.responses.create(input="Go on.", previous_response_id=ways[1].id, **more)
    assert on.usage.input_tokens_details.cached_tokens == ways[1].usage.total_tokens - 1


def test_a_client_carries_the_state_itself(client):
    """What a session of the server says is said, to the same tokens, by requests of which the server stores nothing."""
    turns = ["Once upon a time", " and then", ""]
    more = {"max_tokens": 12, "model": "books", "seed": 5}
    client.post("/sessions", body={"session": "stored"}, cast_to=object)
    stored = [client.completions.create(prompt=text, **more, extra_body={"session": "stored"}) for text in turns]
    client.delete("/sessions/stored", cast_to=object)
    carried, state = [], None
    for text in turns:
        extra = {"return_state": True, "state": state}
        carried.append(client.completions.create(prompt=text, **more, extra_body=extra))
        state = carried[-1].state
        assert base64.b64decode(state, validate=True).startswith(b"RCRVSTAT")
    assert [(c.choices[0].text, c.usage) for c in carried] == [(c.choices[0].text, c.usage) for c in stored]
    chunks = list(
        client.completions.create(
            prompt=" and then", stream=True, **more, extra_body={"return_state": True, "state": carried[0].state}
        )
    )
    assert chunks[-1].choices == [] and chunks[-1].state == carried[1].state
    assert "".join(c.choices[0].text for c in chunks if c.choices) == carried[1].choices[0].text
    for damaged, why in (("!", "base64"), ("AAAA", "cannot be imported"), (state[:-400], "cannot be imported")):
        with pytest.raises(openai.BadRequestError, match=why):
            client.completions.create(prompt="x", **more, extra_body={"state": damaged})


def test_a_chain_is_what_a_session_of_the_same_messages_is(client):
    brief = {"instructions": "Be brief.", "max_output_tokens": 10, **GREEDY}
    first = client.responses.create(input="Who are you?", **brief)
    second = client.responses.create(input="Why?", previous_response_id=first.id, **brief)
    client.post("/sessions", body={"session": "chain"}, cast_to=object)
    said = []
    for messages in (
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}],
        [{"role": "user", "content": "Why?"}],
    ):
        answer = client.chat.completions.create(
            messages=messages, max_tokens=10, extra_body={"session": "chain"}, **GREEDY
        )
        said.append((answer.choices[0].message.content, answer.usage.prompt_tokens))
    assert said == [(r.output_text, r.usage.input_tokens) for r in (first, second)]
    client.delete("/sessions/chain", cast_to=object)


# Fields of the client that change no answer, and are not read: see field_table.cc.
HARMLESS = {
    "access_programs", "background_options", "max_tool_calls", "metadata", "model", "parallel_tool_calls",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier",
    "store", "stream_options", "truncation", "user",
}  # fmt: skip


def test_no_field_of_the_client_is_dropped_in_silence(server):
    import openai.types.chat.completion_create_params as chat
    import openai.types.completion_create_params as completion
    import openai.types.responses.response_create_params as response

    for path, least, params, base in [
        ("completions", {"prompt": "x", "max_tokens": 1}, completion, "CompletionCreateParams"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, chat, "CompletionCreateParams"),
        ("responses", {"input": "x", "max_output_tokens": 1}, response, "ResponseCreateParams"),
    ]:
        kinds = ("Base", "NonStreaming", "Streaming")
        fields = {name for kind in kinds for name in typing.get_type_hints(getattr(params, base + kind))}
        assert len(fields) > 10
        for field in sorted(fields - HARMLESS):
            refused = []
            for wrong in ({"unexpected": [1]}, 17):
                body = json.dumps(least | {field: wrong}).encode()
                request = urllib.request.Request(f"{server.url}/v1/{path}", body, {"content-type": "application/json"})
                try:
                    urllib.request.urlopen(request).read()
                except urllib.error.HTTPError as error:
                    refused.append(json.load(error)["error"])
            # A number is a value of some fields, and an object of others.
            assert any(field in error["message"] for error in refused), (path, field, refused)


def test_constraints_of_other_servers_are_kept_to_or_refused(client):
    def ask(**extra):
        answer = client.completions.create(
            model="books", prompt="It was", max_tokens=400, seed=5, extra_body=extra)
        return answer.choices[0].text

    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    for extra in ({"response_format": {"type": "json_object", "schema": schema}}, {"json_schema": json.dumps(schema)},
                  {"structured_outputs": {"json": schema, "disable_fallback": True}}):
        assert set(json.loads(ask(**extra))) == {"ok"}
    for extra in ({"regex": "(yes|no)"}, {"ebnf": 'root ::= "yes" | "no"'}, {"structured_outputs": {"choice": ["yes", "no"]}}):
        assert ask(**extra) in ("yes", "no")
    assert ask(guided_choice=["\nfoo", "\x010"]) in ("\nfoo", "\x010")
    for extra, field in [({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"jsn": schema}}, "structured_outputs.jsn"),
                         ({"allowed_token_ids": []}, "allowed_token_ids"), ({"stop": {}}, "stop"), ({"grammar": "root ::= \"a\""}, "grammar"),
                         ({"mirostat": 2}, "mirostat"), ({"dry_multiplier": 0.8}, "dry_multiplier"), ({"n_predict": 5}, "n_predict"),
                         ({"xtc_probability": 0.5}, "xtc_probability"), ({"num_ctx": 4096}, "num_ctx")]:
        with pytest.raises(openai.BadRequestError) as error:
            ask(**extra)
        assert error.value.param == field


def test_a_label_does_not_decide_whether_a_request_is_answered(server):
    recorder = Recorder(server)
    asked = {"prompt": PROMPT, "max_tokens": 2, **GREEDY}
    text = recorder.client.completions.create(**asked).choices[0].text
    for odd in ("a b", "#1", "x" * 300):
        answer = recorder.client.completions.create(extra_headers={"x-request-id": odd}, **asked)
        assert answer.choices[0].text == text and answer._request_id.startswith("r-")
    # One stream is open while another request has its label.
    labelled = {"extra_headers": {"x-request-id": "mine"}, "prompt": PROMPT, **GREEDY}
    with recorder.client.completions.create(max_tokens=200, stream=True, **labelled) as stream:
        assert next(stream).id == "cmpl-mine"
        other = recorder.client.completions.create(max_tokens=2, **labelled)
        assert other.choices[0].text == text and other._request_id.startswith("r-")


def test_a_turn_of_a_durable_session_is_sent_again_by_its_key(tmp_path):
    with HttpServer("--state-dir", str(tmp_path)) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        client.post("/sessions", body={"session": "story", "durability": "local"}, cast_to=object)

        def asked(prompt, key, label="mine"):
            answer = client.completions.create(
                prompt=prompt, max_tokens=4, seed=1, model="books", extra_body={"session": "story"},
                extra_headers={"x-request-id": label} | ({"Idempotency-Key": key} if key else {}))
            return answer.choices[0].text, answer.usage.total_tokens

        first = asked(PROMPT, "turn-1")
        assert asked(PROMPT, "turn-1", label="other") == first
        with pytest.raises(openai.ConflictError, match="use a new id"):
            asked("Another", "turn-1")
        # Without a key the same request is another turn.
        longer = asked(PROMPT, None)
        assert longer[1] > first[1] and asked(PROMPT, None)[1] > longer[1]


def test_a_stream_whose_constraint_cannot_be_followed_ends_as_streams_end(server, client):
    other = tokens_of(client, "q")[-1]
    asked = {"max_tokens": 4, **GREEDY, "guided_choice": ["yes", "no"], "allowed_token_ids": [other]}
    for path, prompt in (("completions", {"prompt": PROMPT}), ("chat/completions", {"messages": HELLO})):
        body = asked | prompt
        assert httpx.post(f"{server.url}/v1/{path}", json=body).status_code == 400
        streamed = httpx.post(f"{server.url}/v1/{path}", json=body | {"stream": True})
        if streamed.status_code == 200:
            error, done = [line for line in streamed.text.split("\n\n") if line.startswith("data: ")]
            assert "error" in json.loads(error.removeprefix("data: ")) and done == "data: [DONE]"
        with pytest.raises(openai.APIError, match="constraint"):
            extra = {k: v for k, v in body.items() if k in ("guided_choice", "allowed_token_ids")}
            plain = {k: v for k, v in body.items() if k not in extra}
            create = client.completions if path == "completions" else client.chat.completions
            list(create.create(stream=True, extra_body=extra, **plain))


def test_each_likely_token_has_a_name_of_its_own(client):
    asked = {"prompt": PROMPT, "max_tokens": 12, "seed": 3, "logprobs": 100, "model": "books", "temperature": 3}
    named = client.completions.create(**asked).choices[0]
    by_id = client.completions.create(extra_body={"return_tokens_as_token_ids": True}, **asked).choices[0]
    assert named.text == by_id.text
    logprobs, ids = named.logprobs, by_id.logprobs
    for token, token_id, value, top, top_ids in zip(
        logprobs.tokens, ids.tokens, ids.token_logprobs, logprobs.top_logprobs, ids.top_logprobs, strict=True
    ):
        assert re.fullmatch("token_id:[0-9]+", token_id)
        assert top[token] == top_ids[token_id] == value
        assert len(top) == len(top_ids) >= 100 and sorted(top.values()) == sorted(top_ids.values())
    chat = client.chat.completions.create(
        model="books", messages=HELLO, max_tokens=2, logprobs=True, extra_body={"return_tokens_as_token_ids": True})
    assert all(entry.token.startswith("token_id:") for entry in chat.choices[0].logprobs.content)


def test_offsets_are_where_tokens_begin_in_the_text(client):
    for text in (PROMPT, "Zoë said: “déjà vu” – 東京 🙂", ""):
        choice = client.completions.create(
            prompt=text or [1], max_tokens=30, seed=1, temperature=3, model="books", logprobs=0, echo=bool(text)
        ).choices[0]
        logprobs = choice.logprobs
        ends = [*logprobs.text_offset[1:], len(choice.text)]
        for token, begin, end in zip(logprobs.tokens, logprobs.text_offset, ends, strict=True):
            if not token.startswith("bytes:"):
                assert choice.text[begin:end] in (token, token.removeprefix(" ")), (token, begin, end)


@pytest.mark.parametrize("change, value", [
    ({"temperature": -1}, "-1"), ({"temperature": 1e300}, "1e+300"), ({"top_p": 2.5}, "2.5"),
    ({"logit_bias": {"5": 5000}}, "5000"), ({"stop_token_ids": [3_000_000_000]}, "3000000000"),
    ({"stop": ["a"] * 17}, "17"), ({"MAX": -5}, "-5")])
def test_errors_name_the_field_that_was_sent(client, change, value):
    for path, prompt, given, most in (
        ("/completions", "prompt", PROMPT, "max_tokens"),
        ("/chat/completions", "messages", HELLO, "max_tokens"),
        ("/chat/completions", "messages", HELLO, "max_completion_tokens"),
        ("/responses", "input", HELLO, "max_output_tokens"),
    ):
        sent = {most if name == "MAX" else name: wrong for name, wrong in change.items()}
        with pytest.raises(openai.BadRequestError) as raised:
            client.post(path, body={"model": "books", prompt: given} | sent, cast_to=object)
        (field,) = sent
        assert raised.value.body["param"] == field
        assert value in raised.value.body["message"]
        assert field in raised.value.body["message"]


def test_items_that_other_servers_answered_are_taken(client):
    answer = client.responses.create(model="books", max_output_tokens=4, temperature=0, store=False, input=[
        {"role": "user", "content": "List the files."},
        {"type": "message", "role": "assistant", "content": None},
        {"type": "custom_tool_call", "call_id": "c", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "a.txt"},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "No: ", "annotations": []}, {"type": "refusal", "refusal": "I cannot."}]},
        {"role": "user", "content": "Why?"},
    ])
    assert answer.status in ("completed", "incomplete")
