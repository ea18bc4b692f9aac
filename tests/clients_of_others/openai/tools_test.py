"""Tools: what OpenAI's own client makes of calls, in each form that models write them in."""

import json

import openai
import pydantic
import pytest
from http_server import HERMES, TURNS, HttpServer

FORMS = {
    "hermes": HERMES,
    "qwen3.5": TURNS.replace(
        "CALL",
        "<tool_call>\n<function={{ c.function.name }}>\n"
        "{% for name, value in c.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n"
        "{% endfor %}</function>\n</tool_call>",
    ),
    "mistral": TURNS.replace("CALL", "[TOOL_CALLS] [{{ c.function | tojson }}]"),
    "llama-3": "{#- <|start_header_id|> #}"
    + TURNS.replace(
        "CALL",
        '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
    ),
}
MESSAGES = [{"role": "user", "content": "How will the weather be?"}]


class Forecast(pydantic.BaseModel):
    """The weather of a city."""

    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)


NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
TOOLS = [openai.pydantic_function_tool(Forecast), NOW]


@pytest.fixture(scope="module", params=FORMS)
def tools_client(request, tmp_path_factory):
    template = tmp_path_factory.mktemp("templates") / "form.jinja"
    template.write_text(FORMS[request.param])
    with HttpServer("--chat-template", template) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
            made.form = request.param
            yield made


def ask(client, **more):
    # A random model ends a list of calls when chance lets it: the seed makes chance repeat.
    asked = {"model": "books", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, "seed": 5} | more
    return client.chat.completions.create(**asked)


def check(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "Forecast":
        Forecast.model_validate(arguments, strict=True)
    else:
        assert (call.function.name, arguments) == ("now", {})


def test_a_call_names_a_tool_and_has_its_arguments(tools_client):
    for seed in range(4):
        answer = ask(
            tools_client, tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
        (call,) = choice.message.tool_calls
        check(call)
        assert call.id and call.type == "function"


def test_a_named_function_is_the_one_that_is_called(tools_client):
    named = {"type": "function", "function": {"name": "now"}}
    (call,) = ask(tools_client, tool_choice=named).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})


def test_of_allowed_tools_one_is_called(tools_client):
    now = {"type": "function", "function": {"name": "now"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [now]}}
    for seed in range(4):
        answer = ask(tools_client, tool_choice=allowed, parallel_tool_calls=False, seed=seed, temperature=1)
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})
    functions = [tool["function"] | {"type": "function"} for tool in TOOLS]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    response = tools_client.responses.create(model="books", input="hi", tools=functions, tool_choice=allowed,
                                             parallel_tool_calls=False, max_output_tokens=400)
    (item,) = response.output
    assert item.type == "function_call" and item.name == "now"
    assert response.tool_choice.mode == "required"


def test_with_a_response_format_an_answer_is_calls_or_follows_it(tools_client):
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}}}
    contents = calls = 0
    for seed in range(12):
        asked = dict(response_format=format, parallel_tool_calls=False, seed=seed, temperature=2)
        message = ask(tools_client, **asked).choices[0].message
        for call in message.tool_calls or []:
            check(call)
        if not message.tool_calls:
            assert isinstance(json.loads(message.content)["ok"], bool), message
        calls += bool(message.tool_calls)
        contents += not message.tool_calls
        chunks = [chunk.choices[0] for chunk in ask(tools_client, stream=True, **asked)]
        assert all(c.delta.content or c.delta.tool_calls or c.finish_reason for c in chunks)
        assert "".join(c.delta.content or "" for c in chunks) == (message.content or "")
    assert contents and calls, (contents, calls)


def test_a_stream_is_the_same_call_in_parts(tools_client):
    asked = dict(tool_choice="required", parallel_tool_calls=False, seed=3, temperature=1)
    (whole,) = ask(tools_client, **asked).choices[0].message.tool_calls
    chunks = list(ask(tools_client, stream=True, **asked))
    parts = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert [p.function.name for p in parts if p.id] == [whole.function.name]
    assert "".join(p.function.arguments for p in parts) == whole.function.arguments
    assert all(p.index == 0 for p in parts)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    # The client's own way of putting them together, which reads the arguments too.
    with tools_client.chat.completions.stream(
        model="books", messages=MESSAGES, tools=TOOLS[:1], max_tokens=400, **asked
    ) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Forecast)


def test_an_answer_may_do_without_and_a_conversation_goes_on(tools_client):
    free = ask(tools_client, max_tokens=5, temperature=0)
    assert free.choices[0].finish_reason in ("length", "stop", "tool_calls")
    assert ask(tools_client, tool_choice="none", max_tokens=5).choices[0].message.tool_calls is None
    first = ask(tools_client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    second = ask(tools_client, messages=[*MESSAGES, first, result], max_tokens=5)
    assert second.usage.prompt_tokens > ask(tools_client, max_tokens=5).usage.prompt_tokens


def test_a_response_has_calls_as_items(tools_client):
    function = TOOLS[0]["function"] | {"type": "function"}
    asked = dict(model="books", input="hi", tools=[function], tool_choice="required",
                 parallel_tool_calls=False, max_output_tokens=400)
    (item,) = tools_client.responses.create(**asked).output
    assert item.type == "function_call" and item.name == "Forecast" and item.call_id
    Forecast.model_validate_json(item.arguments, strict=True)
    with tools_client.responses.stream(**asked, temperature=0) as stream:
        events = [event.type for event in stream]
    assert "response.function_call_arguments.delta" in events
    assert events[-1] == "response.completed"


def test_what_cannot_be_is_refused_by_name(tools_client):
    unknown = {"type": "function", "function": {"name": "absent"}}
    lax = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "contains": {}}}}]
    for more, param in [({"tool_choice": unknown}, "tool_choice"), ({"tools": lax}, "tools"),
                        ({"extra_body": {"guided_regex": "a"}}, "guided_regex")]:
        with pytest.raises(openai.BadRequestError) as raised:
            ask(tools_client, **more)
        assert raised.value.param == param
