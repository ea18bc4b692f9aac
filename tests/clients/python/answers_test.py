"""Every call that asks the model, by both clients."""

import json
import math
import subprocess
from random import Random

import pytest
import recurve
from fake_server import FakeServer
from recurve.v1 import inference_pb2 as inference

from server import BIN

PROMPT = "It was a dark night, and"


def test_embeddings_are_of_length_one_and_their_own(client):
    texts = [PROMPT, "The sea was grey.", client.tokenize("The sea was grey.").ids]
    found = client.embed(texts)
    width = client.model_info().embedding_dimensions
    assert [len(v) for v in found.vectors] == [width] * 3
    assert all(abs(math.hypot(*v) - 1) < 1e-6 for v in found.vectors)
    assert found.vectors[1] == found.vectors[2] == client.embed(texts[1]).vectors[0]
    assert found.prompt_tokens == tuple(len(client.tokenize(t).ids) for t in texts[:2]) + (len(texts[2]),)
    assert found.usage.prompt_tokens == sum(found.prompt_tokens)
    short = client.embed(texts[2], dimensions=8).vectors[0]
    scale = math.hypot(*found.vectors[2][:8])
    assert short == pytest.approx([v / scale for v in found.vectors[2][:8]])
    assert client.embed(texts, pooling="mean").vectors[0] != found.vectors[0]
    with pytest.raises(recurve.InvalidArgumentError, match="dimensions must be in"):
        client.embed("a", dimensions=width + 1)
    with pytest.raises(recurve.InvalidArgumentError, match="input must be 1 to 2048"):
        client.embed([])
    with pytest.raises(ValueError, match="pooling must be one of last, mean"):
        client.embed("a", pooling="max")
    with pytest.raises(TypeError, match="no option 'top'"):
        client.embed("a", top=3)


def test_an_answer_has_its_text_ids_and_usage(client):
    answer = client.generate(PROMPT, max_tokens=12, ignore_eos=True, seed=3)
    assert len(answer.ids) == answer.usage.generated_tokens == 12
    assert answer.finish_reason == "length"
    assert answer.choices[0].stop is None
    assert answer.text == client.detokenize(answer.ids, continued=True)
    assert answer.prompt.seed == 3
    assert answer.prompt.prompt_tokens == len(client.tokenize(PROMPT).ids)
    assert answer.usage.decode_seconds > 0


def test_a_stream_brings_the_same_in_parts(client):
    whole = client.generate(PROMPT, max_tokens=20, seed=5)
    stream = client.stream(PROMPT, max_tokens=20, seed=5)
    assert stream.prompt is None
    chunks = list(stream)
    assert stream.prompt.seed == 5
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum((chunk.ids for chunk in chunks), ()) == whole.ids
    assert stream.result().ids == whole.ids
    chunks = client.generate(PROMPT, max_tokens=20, seed=5, stream=True)
    assert "".join(chunk.text for chunk in chunks) == whole.text


def test_the_progress_of_a_long_prompt_is_reported(client):
    seen = []
    answer = client.generate(
        PROMPT * 400, max_tokens=1, prefix="off", on_progress=lambda *both: seen.append(both)
    )
    absorbed = [one for one, _ in seen]
    assert absorbed == sorted(set(absorbed)) and 0 < absorbed[0] <= absorbed[-1] < answer.prompt.prompt_tokens
    assert {all_of_it for _, all_of_it in seen} == {answer.prompt.prompt_tokens}
    with pytest.raises(ZeroDivisionError):
        client.generate(PROMPT * 400, max_tokens=1, prefix="off", on_progress=lambda *both: 1 / 0)


def test_clients_of_both_kinds_and_the_command_line_get_the_same_tokens(client, address):
    answer = client.generate(PROMPT, max_tokens=40, seed=11, temperature=0.9, top_p=0.95)
    printed = subprocess.run(
        f"{BIN}/recurve generate --server {address} --json --max-tokens 40 --seed 11"
        " --temperature 0.9 --top-p 0.95".split()
        + ["--prompt", PROMPT],
        capture_output=True,
        check=True,
    ).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    ids = [i for line in lines for i in line.get("chunk", {}).get("ids", ())]
    assert list(answer.ids) == ids
    assert len(ids) == 40


def test_a_prompt_leaves_a_state_where_it_says(client):
    chunk = client.model_info().chunk_tokens
    random = Random()  # no other test sends these ids
    for points, spared in (([], 0), ([2 * chunk + 1], 2 * chunk)):
        begin, *ends = ([random.randrange(260, 2000) for _ in range(4 * chunk)] for _ in range(3))
        client.generate(begin + ends[0], max_tokens=1, prefix_points=points)
        other = begin + ends[1]
        hit = client.generate(other, max_tokens=4, temperature=0)
        assert hit.usage.prefix_tokens == spared
        assert hit.usage.prefix_replayed_tokens == 4 * chunk - spared
        assert hit.ids == client.generate(other, max_tokens=4, temperature=0, prefix="off").ids
    with pytest.raises(recurve.InvalidArgumentError, match="prefix_points"):
        client.generate("It was", max_tokens=1, prefix_points=[0])


def test_a_prompt_of_ids_is_the_prompt_of_their_text(client):
    ids = client.tokenize(PROMPT).ids
    by_text = client.generate(PROMPT, max_tokens=8, temperature=0)
    assert client.generate(ids, max_tokens=8, temperature=0).ids == by_text.ids


def test_every_option_reaches_the_server(client):
    allowed = client.tokenize("the and of").ids
    answer = client.generate(
        PROMPT,
        max_tokens=6,
        min_tokens=6,
        ignore_eos=True,
        stop=["zzzz"],
        stop_token_ids=[5],
        include_stop=True,
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={allowed[0]: 1.0},
        allowed_token_ids=allowed,
        seed=1,
        n=2,
        logprobs=1,
        prompt_logprobs=0,
        priority=1,
        request_id="every-option",
        add_special_tokens=True,
        parse_special=False,
        timeout=60,
    )
    assert answer.prompt.request_id == "every-option"
    assert len(answer.choices) == 2
    assert {i for choice in answer.choices for i in choice.ids} <= set(allowed)
    with pytest.raises(TypeError, match="'max_token'"):
        client.generate(PROMPT, max_token=6)


@pytest.mark.parametrize(
    "option, value",
    [
        ("temperature", -1.0),
        ("top_k", -1),
        ("top_p", 2.0),
        ("min_p", 2.0),
        ("typical_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", 3.0),
        ("logit_bias", {1: 1e9}),
        ("allowed_token_ids", [-1]),
        ("max_tokens", -1),
        ("min_tokens", 300),
        ("stop", ""),
        ("stop_token_ids", [-1]),
        ("n", 0),
        ("logprobs", 101),
        ("prompt_logprobs", 101),
        ("priority", 11),
        ("request_id", "no blanks"),
    ],
)
def test_the_server_names_the_option_that_is_out_of_range(client, option, value):
    with pytest.raises(recurve.InvalidArgumentError) as error:
        client.generate(PROMPT, **{option: value})
    assert option in error.value.message


def test_a_stop_string_ends_the_answer(client):
    text = client.generate(PROMPT, max_tokens=30, temperature=0, ignore_eos=True).text
    stop = text[10:14]
    answer = client.generate(PROMPT, max_tokens=30, temperature=0, ignore_eos=True, stop=stop)
    assert answer.finish_reason == "stop_string"
    assert answer.choices[0].stop == stop
    assert answer.text == text[: text.index(stop)]
    shown = client.generate(
        PROMPT, max_tokens=30, temperature=0, ignore_eos=True, stop=[stop], include_stop=True
    )
    assert shown.text == answer.text + stop


def test_a_stop_id_ends_the_answer(client):
    ids = client.generate(PROMPT, max_tokens=9, temperature=0, ignore_eos=True).ids
    answer = client.generate(PROMPT, max_tokens=9, temperature=0, stop_token_ids=[ids[4]])
    assert (answer.finish_reason, answer.choices[0].stop) == ("stop_id", ids[4])


def test_log_probabilities_are_those_of_the_most_likely(client):
    answer = client.generate(PROMPT, max_tokens=5, temperature=0, logprobs=3, prompt_logprobs=1)
    tokens = answer.choices[0].logprobs
    assert [token.id for token in tokens] == list(answer.ids)
    for token in tokens:
        assert [token.id, token.logprob] == [token.top[0].id, token.top[0].logprob]
        assert len(token.top) == 3
        assert token.logprob <= 0
    assert b"".join(token.token for token in tokens).decode() == answer.text
    assert len(answer.prompt_logprobs) == answer.prompt.prompt_tokens - 1


def test_a_chat_is_what_the_template_writes(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    written = "system: Be brief.\nuser: Who?\nassistant: "
    assert client.tokenize(messages=messages).ids == client.tokenize(written).ids
    by_chat = client.chat(messages, max_tokens=10, temperature=0)
    assert by_chat.ids == client.generate(written, max_tokens=10, temperature=0).ids
    assert "".join(
        chunk.text for chunk in client.chat(messages, max_tokens=10, temperature=0, stream=True)
    ) == (by_chat.text)
    assert client.tokenize(messages="Who?").ids == client.tokenize("user: Who?\nassistant: ").ids


def test_a_content_may_be_a_list_of_parts(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
    assert client.tokenize(messages=parts).ids == client.tokenize("user: Who?\nassistant: ").ids


def test_a_message_brings_all_its_fields(connect):
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    with FakeServer(Tokenize=[[inference.TokenizeResponse()]]) as server:
        connect(server.address).tokenize(messages=[called])
    message = server.asked[0][2].messages.messages[0]
    assert message.role == "assistant"
    assert not message.HasField("content")
    assert json.loads(message.fields_json) == {"content": None, "tool_calls": [{"name": "f"}]}


def test_a_chat_may_bring_tools_variables_and_an_answer_begun(client):
    answer = client.chat(
        [{"role": "user", "content": "Who?", "name": "x"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="none",
        variables={"mood": "gloomy"},
        add_generation_prompt=False,
        max_tokens=0,
    )
    assert answer.prompt.prompt_tokens == len(client.tokenize("user: Who?\n").ids)
    begun = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The"}]
    answer = client.chat(begun, continue_final_message=True, max_tokens=0)
    assert answer.prompt.prompt_tokens == len(client.tokenize("user: Who?\nassistant: The").ids)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"enum": ["a", "b", "c"]}},
                "required": [key],
                "additionalProperties": False,
            },
        },
    }
    for name, key in (("weather", "city"), ("now", "zone"))
]


def test_calls_of_tools_are_told_from_the_text(client):
    asked = {"tools": TOOLS, "max_tokens": 100, "seed": 3}
    whole = client.chat("Who?", tool_choice="required", parallel_tool_calls=False, **asked)
    (call,) = whole.tool_calls
    keys = {"weather": "city", "now": "zone"}
    assert list(call.values) == [keys[call.name]]
    assert call.values[keys[call.name]] in "abc"
    assert call.id.startswith("call_")
    assert "tool_call" not in whole.text
    assert "<tool_call>" in client.detokenize(whole.ids, continued=True)
    assert whole.finish_reason == "eos"

    stream = client.chat(
        "Who?", tool_choice="required", parallel_tool_calls=False, stream=True, **asked
    )
    parts = [part for chunk in stream for part in chunk.tool_calls]
    assert {part.index for part in parts} == {0}
    assert parts[0].name == call.name
    assert "".join(part.arguments for part in parts) == call.arguments

    for name in keys:
        named = client.chat("Who?", tool_choice=name, **asked)
        assert [one.name for one in named.tool_calls] == [name]
    # What it was and what it gave goes into the conversation.
    spoken = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": whole.text, "tool_calls": [call.message]},
        call.result("rain"),
    ]
    begun = client.detokenize(client.tokenize(messages=spoken).ids)
    assert json.dumps(call.values) in begun
    assert "tool: rain" in begun


def test_an_answer_of_two_choices_has_the_calls_of_both(client):
    both = client.chat("Who?", tools=TOOLS, tool_choice="required", n=2, max_tokens=200, seed=5)
    for choice in both.choices:
        assert all(call.name in ("weather", "now") for call in choice.tool_calls)
        assert choice.tool_calls
    assert {c.id for c in both.choices[0].tool_calls}.isdisjoint(
        c.id for c in both.choices[1].tool_calls
    )


def test_tools_that_cannot_be_called_are_refused(client, connect):
    for choice, error in (
        ("absent", recurve.InvalidArgumentError),
        ({"type": "function"}, TypeError),
    ):
        with pytest.raises(error, match="tool_choice"):
            client.chat("Who?", tools=TOOLS, tool_choice=choice)
    with pytest.raises(TypeError, match="tool_choice needs tools"):
        client.chat("Who?", tool_choice="required")
    with pytest.raises(TypeError, match="allowed_tools needs tools"):
        client.chat("Who?", allowed_tools=["now"])
    with pytest.raises(recurve.InvalidArgumentError, match="no tool has that name"):
        client.chat("Who?", tools=TOOLS, allowed_tools=["now", "absent"])
    with pytest.raises(recurve.InvalidArgumentError, match="cannot be combined with tools"):
        client.chat("Who?", tools=TOOLS, regex="a")
    refused = [{"type": "function", "function": {"name": "f", "parameters": {"contains": {}}}}]
    with pytest.raises(recurve.InvalidArgumentError, match="the parameters of f: schema, contains at #"):
        client.chat("Who?", tools=refused)


def test_a_call_that_is_cut_says_so(client):
    cut = client.chat("Who?", tools=TOOLS, tool_choice="now", max_tokens=22, seed=3)
    assert cut.finish_reason == "length"
    if cut.tool_calls:
        with pytest.raises(ValueError):
            cut.tool_calls[0].values  # noqa: B018


def test_scores_do_not_depend_on_how_a_text_comes(client):
    text = "It was a dark night, and the wind blew — from the east.\n" * 40
    score = client.score(text)
    assert score.text_bytes == len(text.encode())
    assert score.sum_logprob < 0
    assert score.tokens == ()
    lines = text.splitlines(keepends=True)
    for other in (text.encode(), iter(lines), iter([line.encode() for line in lines])):
        assert client.score(other).sum_logprob == score.sum_logprob
    ids = client.tokenize(text).ids
    assert client.score(ids).sum_logprob == score.sum_logprob
    assert score.bits_per_byte == pytest.approx(
        -score.sum_logprob / math.log(2) / len(text.encode())
    )
    assert score.perplexity == pytest.approx(math.exp(-score.sum_logprob / score.scored_tokens))


def test_a_score_of_tokens_is_that_of_the_prompt(client):
    score = client.score(PROMPT, top=2, request_id="scored", priority=1, timeout=60)
    answer = client.generate(PROMPT, max_tokens=0, prompt_logprobs=2)
    assert score.tokens == answer.prompt_logprobs
    assert math.fsum(token.logprob for token in score.tokens) == pytest.approx(score.sum_logprob)
    with pytest.raises(TypeError, match="'tops'"):
        client.score(PROMPT, tops=2)


def test_what_the_texts_iterator_raises_ends_the_score(client):
    def broken():
        yield "It was"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        client.score(broken())
    assert client.score(PROMPT).scored_tokens > 0


def test_tokens_and_text_are_each_others(client):
    tokens = client.tokenize(PROMPT, with_bytes=True)
    assert len(tokens.pieces) == len(tokens.ids)
    assert b"".join(tokens.pieces).decode().strip() == PROMPT
    assert client.tokenize(PROMPT).pieces == ()
    assert client.detokenize(tokens.ids) == PROMPT
    assert client.detokenize(tokens.ids, continued=True).strip() == PROMPT
    with pytest.raises(TypeError):
        client.tokenize()


def test_the_server_says_what_it_is(client):
    model = client.model_info()
    assert (model.family, model.weight_type, model.bos_id) == ("gla", "int8", None)
    assert model.has_chat_template
    assert model.eos_ids == (1, 2)  # the config's, and the tokenizer's
    assert {op.name for op in model.ops} >= {"gla", "linear"}
    server = client.server_info()
    assert server.state == "serving"
    assert server.limits.slots == 8
    load = client.load()
    assert load.slots.total == 8
    assert load.sessions.total == len(client.list_sessions())
    assert client.health() == "serving"
    client.wait_until_serving(30)


def test_a_prompt_that_begins_as_another_one_did_is_spared_and_answered_alike(client):
    prompt = "It was the best of times, it was the worst of times, " * 40
    first = client.generate(prompt, max_tokens=8, seed=1, prefix="off")
    client.generate(prompt, max_tokens=1)
    again = client.generate(prompt, max_tokens=8, seed=1, prefix="use")
    assert first.usage.prefix_tokens == 0
    assert 0 < again.usage.prefix_tokens < again.usage.prompt_tokens
    assert again.ids == first.ids
    with pytest.raises(ValueError, match="use-and-keep"):
        client.generate("x", prefix="sometimes")
