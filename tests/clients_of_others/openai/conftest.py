"""Clients of OpenAI's API before a real server; run.sh makes the environments that have them."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
if importlib.util.find_spec("openai") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    import openai

    from http_server import HttpServer
if importlib.util.find_spec("langchain_openai") is None:
    collect_ignore = ["chat_template_test.py", "langchain_test.py", "lm_eval_test.py"]


@pytest.fixture(scope="session")
def server():
    with HttpServer("--chat-template", "plain") as running:
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
