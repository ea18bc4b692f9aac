"""--chat-template: what the server reads of messages, against Jinja2 on the same template."""

import json
import subprocess
import urllib.error
import urllib.request

import jinja2
import pytest
from http_server import MODEL, HttpServer

FORMS = "alpaca chatml gemma llama-3 mistral phi-3 plain vicuna zephyr".split()
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A sailor."},
    {"role": "user", "content": "Why?"},
]


def ask(server, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_writes_what_jinja_writes_and_sessions_go_on_with_it(form):
    with HttpServer("--chat-template", form) as server:
        source = ask(server, "/tokenizer_info")["chat_template"]
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        expected = environment.from_string(source).render(
            messages=TURNS, add_generation_prompt=True
        )
        tokens = ask(server, "/tokenize", {"messages": TURNS})["tokens"]
        assert ask(server, "/detokenize", {"tokens": tokens})["prompt"].strip() == expected.strip()
        for turn in TURNS:
            assert turn["content"] in expected
        ask(server, "/v1/sessions", {"session": "talk"})
        for messages in (TURNS[:2], TURNS[3:]):
            asked = {"messages": messages, "max_tokens": 3, "session": "talk"}
            assert ask(server, "/v1/chat/completions", asked)["choices"]


def test_a_file_is_taken_and_none_is_refused(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    with HttpServer("--chat-template", file) as server:
        assert ask(server, "/tokenizer_info")["chat_template"] == file.read_text()
    with HttpServer() as server, pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "/v1/chat/completions", {"messages": TURNS})
    assert refused.value.code == 400
    assert "--chat-template" in json.load(refused.value)["error"]["message"]
    for wrong in ("unheard-of", str(tmp_path)):
        command = [*HttpServer("--chat-template", wrong)._command]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 1 and "chatml" in ended.stderr, MODEL
