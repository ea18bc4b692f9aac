"""Clients of OpenAI's API before a real server; run.sh makes the environments that have them."""

import importlib.util
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
if importlib.util.find_spec("openai") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    import openai

    from server import Server

    MODEL = ROOT / "weights_tools/demo/gla-books"
if importlib.util.find_spec("langchain_openai") is None:
    collect_ignore = ["chat_template_test.py", "langchain_test.py", "lm_eval_test.py"]


class HttpServer(Server):
    """The same, with `url` of its HTTP door."""

    def __init__(self, *flags):
        super().__init__(MODEL, "--http", "127.0.0.1:0", "--name", "books", *flags)

    def __enter__(self):
        super().__enter__()
        # The door's line follows the one that is waited for.
        while not (line := next((l for l in self._log if "event=serving_http" in l), None)):
            pass
        self.url = f"http://127.0.0.1:{re.search(r'port=([0-9]+)', line)[1]}"
        return self


@pytest.fixture(scope="session")
def server():
    with HttpServer("--chat-template", "plain") as running:
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
