"""Reasoning, as OpenAI's own client sees it. The demo model does not end its reasoning: the template does, or nothing."""

import openai
import pytest
from http_server import HttpServer

TEMPLATE = """
{%- for m in messages %}{{ m.role }}: {{ m.content or "" }}
{% endfor %}assistant:
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>
{% endif %}"""
TO_THE_END = {"extra_body": {"ignore_eos": True}}  # a drawn answer may end at once
MESSAGES = [{"role": "user", "content": "How will the weather be?"}]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("templates") / "think.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def client(template):
    with HttpServer("--chat-template", template) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
            yield made


def chat(client, **more):
    asked = {"model": "books", "messages": MESSAGES, "max_tokens": 16, "seed": 5, **TO_THE_END}
    return client.chat.completions.create(**asked | more)


def test_a_chat_has_it_apart(client):
    answer = chat(client)
    message = answer.choices[0].message
    assert message.reasoning_content and not message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens == 16
    streamed = "".join(
        getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chat(client, stream=True)
    )
    assert streamed == message.reasoning_content


def test_effort_none_reaches_the_template(client):
    message = chat(client, reasoning_effort="none").choices[0].message
    assert message.content and not hasattr(message, "reasoning_content")
    assert chat(client, reasoning_effort="low").choices[0].message.reasoning_content
    with pytest.raises(openai.BadRequestError, match="effort"):
        chat(client, reasoning_effort="enormous")


def test_a_response_has_an_item_for_it(client):
    asked = {"model": "books", "input": "How will the weather be?", "max_output_tokens": 16, "store": False}
    asked |= TO_THE_END
    answer = client.responses.create(**asked, reasoning={"effort": "medium", "summary": "auto"})
    (item,) = answer.output
    assert item.type == "reasoning" and item.content[0].type == "reasoning_text" and item.content[0].text
    assert answer.usage.output_tokens_details.reasoning_tokens == 16
    assert answer.reasoning.effort == "medium" and not answer.output_text
    text = ""
    with client.responses.stream(**asked) as stream:
        for event in stream:
            text += event.delta if event.type == "response.reasoning_text.delta" else ""
    assert event.type == "response.incomplete"  # it was cut
    assert event.response.output[0].content[0].text == text != ""
    more = client.responses.create(**asked | {"input": [{"role": "user", "content": "x"}, item.model_dump()]})
    assert more.status == "incomplete"


def test_off_leaves_it_in_the_text(template):
    with HttpServer("--chat-template", template, "--reasoning", "off") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
            message = chat(made).choices[0].message
            assert message.content and not hasattr(message, "reasoning_content")
