"""The Python client before a real server; run.sh makes the environment that has it."""

import asyncio
import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
if importlib.util.find_spec("recurve") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import recurve
    from blocking import Blocking

    from server import Server


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """A demo checkpoint with a chat template."""
    folder = tmp_path_factory.mktemp("chat-model")
    demo = ROOT / "weights_tools/demo/gla-books"
    for name in ("config.json", "model.safetensors", "tokenizer.model"):
        os.symlink((demo / name).resolve(), folder / name)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}"
        "{% for call in message.tool_calls or [] %}<tool_call>\n"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
        "\n</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return folder


@pytest.fixture(scope="session")
def server(chat_model):
    """One that serves all that the tests ask for."""
    with Server(chat_model) as running:
        yield running


@pytest.fixture(scope="session")
def address(server):
    return server.address


@pytest.fixture(params=["sync", "async"])
def connect(request):
    """Makes clients: Client, and AsyncClient in its shape. Their arguments are those of both."""
    made = []
    if request.param == "sync":

        def make(address, **options):
            made.append(recurve.Client(address, **options))
            return made[-1]

        yield make
        for client in made:
            client.close()
        return
    with asyncio.Runner() as runner:

        def make(address, **options):
            async def construct():
                return recurve.AsyncClient(address, **options)

            made.append(Blocking(runner, runner.run(construct())))
            return made[-1]

        yield make
        for client in made:
            client.close()


@pytest.fixture
def client(connect, address):
    return connect(address)
