"""Messages, streams, tools, counts and errors, as Anthropic's own client sees them."""

import json
import os
import pathlib
import subprocess
import typing
import urllib.error
import urllib.request

import anthropic
import pytest
from anthropic.types import beta, message_count_tokens_params, message_create_params, tool_param
from http_server import HERMES, HttpServer

MESSAGES = [{"role": "user", "content": "How will the weather be?"}]
TOOLS = [
    {
        "name": "forecast",
        "description": "The weather of a city.",
        "input_schema": {
            "type": "object",
            # Short, so that a call ends before max_tokens.
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
]
# Fields that change no answer: see messages_fields of the server.
HARMLESS = {
    "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "inference_geo", "metadata",
    "service_tier", "speed", "user_profile_id", "workspace_id",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    template = tmp_path_factory.mktemp("templates") / "hermes.jinja"
    template.write_text(HERMES)
    with HttpServer("--chat-template", template) as running:
        yield running


@pytest.fixture(scope="module")
def thinking_client(tmp_path_factory):
    template = tmp_path_factory.mktemp("templates") / "think.jinja"
    template.write_text(HERMES.replace("assistant:", "assistant:{% if enable_thinking %}<think>{% endif %}"))
    with HttpServer("--chat-template", template) as running:
        with anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as made:
            yield made


def test_thinking_is_a_block(thinking_client):
    # Greedily: chance may end an answer at once.
    enabled = GREEDY | {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    answer = ask(thinking_client, **enabled)
    (block,) = answer.content
    assert block.type == "thinking" and block.thinking and block.signature
    assert answer.usage.output_tokens_details.thinking_tokens == answer.usage.output_tokens
    with thinking_client.messages.stream(**{"model": "books", "messages": MESSAGES, "max_tokens": 24} | enabled) as stream:
        last = stream.get_final_message()
    assert last.content[0].type == "thinking" and last.content[0].thinking and last.content[0].signature
    back = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": "And then?"}]
    assert ask(thinking_client, messages=back, **GREEDY).content[0].type == "text"
    assert ask(thinking_client, thinking={"type": "disabled"}, **GREEDY).content[0].type == "text"


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def ask(client, **more):
    return client.messages.create(**({"model": "books", "messages": MESSAGES, "max_tokens": 24} | more))


# The client has no parameter for it, and its service has the field.
GREEDY = {"extra_body": {"temperature": 0}}


def test_a_message_has_its_text_and_its_usage(client):
    answer = ask(client, system="Be brief.", **GREEDY)
    (block,) = answer.content
    assert block.type == "text" and block.text
    assert answer.role == "assistant" and answer.model == "books"
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 24
    counted = client.messages.count_tokens(model="books", system="Be brief.", messages=MESSAGES)
    cached = answer.usage.cache_read_input_tokens
    assert answer.usage.input_tokens + cached == counted.input_tokens > 10


def test_a_stream_is_the_same_message(client):
    whole = ask(client, **GREEDY)
    with client.messages.stream(model="books", messages=MESSAGES, max_tokens=24, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.content[0].text == text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_ends_the_message(client):
    whole = ask(client, **GREEDY).content[0].text
    stop = whole[8:12]
    answer = ask(client, stop_sequences=[stop], **GREEDY)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == whole[: whole.index(stop)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "forecast"}])
def test_calls_of_tools_and_their_results(client, choice):
    # A random model ends a call when chance lets it: any seed of the server's does.
    more = {"tools": TOOLS, "tool_choice": choice | {"disable_parallel_tool_use": True}, "max_tokens": 400}
    answer = ask(client, **more)
    assert answer.stop_reason == "tool_use", answer
    (call,) = answer.content
    assert call.type == "tool_use" and call.name == "forecast" and call.id
    assert isinstance(call.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = MESSAGES + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert ask(client, messages=history, tools=TOOLS).content


def test_a_streamed_call_has_its_input(client):
    more = {"model": "books", "messages": MESSAGES, "max_tokens": 400, "tools": TOOLS}
    more["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**more) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (call,) = stream.get_final_message().content
    assert json.loads("".join(parts)) == call.input and set(call.input) <= {"city", "days"}


def test_a_schema_constrains_the_answer(client):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(client, max_tokens=64, extra_body={"output_config": config})
    assert json.loads(answer.content[0].text)["n"] in (1, 2)


def test_errors_are_those_of_the_client(client):
    with pytest.raises(anthropic.BadRequestError, match="top_p"):
        ask(client, extra_body={"top_p": 7})
    with pytest.raises(anthropic.NotFoundError, match="other"):
        ask(client, model="other")
    with pytest.raises(anthropic.BadRequestError, match='"image"') as error:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
        ask(client, messages=[{"role": "user", "content": [image]}])
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"


def test_keys_come_in_the_clients_own_header(tmp_path):
    keys = tmp_path / "keys.json"
    new = [pathlib.Path(os.environ["RECURVE_BIN"]) / "recurve", "keys", "new", "--tenant", "alice", "--file", keys]
    key = subprocess.run(new, check=True, capture_output=True, text=True).stdout.strip()
    with HttpServer("--chat-template", "plain", "--keys", str(keys)) as running:
        with anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0) as known:
            assert ask(known).content
        with anthropic.Anthropic(base_url=running.url, auth_token=key, max_retries=0) as known:
            assert ask(known).content
        with anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as unknown:
            with pytest.raises(anthropic.AuthenticationError):
                ask(unknown)


def fields_of(*types):
    return sorted({name for one in types for name in typing.get_type_hints(one)})


CREATE = fields_of(
    message_create_params.MessageCreateParamsStreaming, beta.message_create_params.MessageCreateParamsStreaming
)
COUNT = fields_of(
    message_count_tokens_params.MessageCountTokensParams, beta.message_count_tokens_params.MessageCountTokensParams
)


@pytest.mark.parametrize("path, fields", [("messages", CREATE), ("messages/count_tokens", COUNT)])
def test_no_field_of_the_client_is_dropped_in_silence(server, path, fields):
    least = {"messages": MESSAGES} | ({"max_tokens": 1} if path == "messages" else {})
    assert len(fields) > 5
    for field in fields:
        answer_only = path.endswith("count_tokens") and field == "output_config"
        if field in HARMLESS | {"betas"} or answer_only:  # betas travels in a header
            continue
        body = json.dumps(least | {field: {"unexpected": [1]}}).encode()
        request = urllib.request.Request(f"{server.url}/v1/{path}", body, {"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 400, field
        assert field in json.load(refused.value)["error"]["message"], field


def test_no_field_of_a_tool_is_dropped_in_silence(server):
    harmless = {"cache_control", "eager_input_streaming"}
    fields = fields_of(tool_param.ToolParam, beta.beta_tool_param.BetaToolParam)
    for field in set(fields) - harmless - {"input_schema"}:
        tool = TOOLS[0] | {field: {"unexpected": [1]}}
        body = json.dumps({"messages": MESSAGES, "max_tokens": 1, "tools": [tool]}).encode()
        request = urllib.request.Request(f"{server.url}/v1/messages", body, {"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 400, field
        assert field in json.load(refused.value)["error"]["message"], field
