"""Agents as a user starts them, before a real server: Codex by /v1/responses, Claude Code by /v1/messages.

The demo's model writes stories: what an agent asks, streams and carries on is tested, and not what it does.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests/clients/python"), str(ROOT / "tests/clients_of_others/openai")]
from http_server import HERMES, MODEL, HttpServer  # noqa: E402

FULL_STOP = 263  # of the demo's tokenizer: a sentence is an answer
CODEX = """model = "books"
model_provider = "recurve"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.recurve]
name = "Recurve"
base_url = "{url}/v1"
wire_api = "responses"
"""


def program(package, path, distribution):
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{distribution} is not installed: tests/clients_of_others/run.sh agents current installs it")
    return pathlib.Path(found.origin).parent / path


@pytest.fixture
def codex():
    return program("codex_cli_bin", "bin/codex", "openai-codex-cli-bin")


@pytest.fixture
def claude():
    return program("claude_agent_sdk", "_bundled/claude", "claude-agent-sdk")


@pytest.fixture
def server(tmp_path):
    model = tmp_path / "books"
    model.mkdir()
    for file in MODEL.iterdir():
        (model / file.name).symlink_to(file)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, FULL_STOP]}))
    template = tmp_path / "hermes.jinja"
    template.write_text(HERMES)
    with HttpServer("--chat-template", template, model=model) as running:
        yield running


def run(tmp_path, command, **environment):
    """What it prints, in a separate folder, where nothing but this machine can be reached."""
    (tmp_path / "work").mkdir(exist_ok=True)
    nowhere = "http://127.0.0.1:9"
    environment |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere,
                    "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=tmp_path / "work", env=environment, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_codex_answers_and_continues(codex, server, tmp_path):
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text(CODEX.format(url=server.url))

    def turn(*arguments):
        command = [codex, "exec", "--skip-git-repo-check", "--sandbox", "read-only", "--json", *arguments]
        events = [json.loads(line) for line in run(tmp_path, command).splitlines()]
        (text,) = [e["item"]["text"] for e in events if e.get("item", {}).get("type") == "agent_message"]
        assert text.strip()
        assert not [e for e in events if e["type"] in ("error", "turn.failed")]
        (usage,) = [e["usage"] for e in events if e["type"] == "turn.completed"]
        return usage

    first = turn("Say hello.")
    assert first["input_tokens"] > 1000 and first["output_tokens"] > 0
    second = turn("resume", "--last", "And again.")
    assert second["cached_input_tokens"] > first["input_tokens"] * 0.9


def test_claude_code_answers_and_continues(claude, server, tmp_path):
    def turn(*arguments):
        said = json.loads(run(
            tmp_path, [claude, "--model", "books", "--output-format", "json", "-p", *arguments],
            ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="none", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1", DISABLE_TELEMETRY="1"))
        assert not said["is_error"] and said["result"].strip()
        return said

    first = turn("Say hello.")
    assert first["usage"]["input_tokens"] > 1000 and first["usage"]["output_tokens"] > 0
    second = turn("And again.", "--resume", first["session_id"])
    assert second["usage"]["cache_read_input_tokens"] > first["usage"]["input_tokens"] * 0.5
