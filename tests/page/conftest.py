"""The page in headless Chromium, before a real server; run.sh makes the environment."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "build/results"
if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    from playwright.sync_api import sync_playwright

BIN = pathlib.Path(os.environ.get("RECURVE_BIN", "."))
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class Server:
    """Serves a model over HTTP from `with` to the end of the block, or until killed."""

    def __init__(self, model, *flags):
        self._command = [BIN / "recurve-server", "--model", model, "--listen", "127.0.0.1:0",
                         "--http", "127.0.0.1:0", "--threads", "1", "--ttft-ms", "0", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._log = []
        for line in self.process.stderr:
            self._log.append(line)
            serving = re.search(r"event=serving_http .*port=(\d+)", line)
            if serving:
                break
        else:
            raise AssertionError("".join(self._log))
        self.url = f"http://127.0.0.1:{serving[1]}"
        self.grpc = "127.0.0.1:" + re.search(r"event=serving .*port=(\d+)", "".join(self._log))[1]
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stderr))
        self._reader.start()
        return self

    def __exit__(self, *reason):
        self.process.terminate()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A demo checkpoint with a chat template."""
    folder = tmp_path_factory.mktemp("model") / "xlstm-books"
    folder.mkdir()
    for file in (ROOT / "weights_tools/demo/xlstm-books").iterdir():
        os.symlink(file.resolve(), folder / file.name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def server(model):
    with Server(model) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # The system's, or else playwright's.
        yield playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell"),
                                         args=["--no-sandbox"])


@pytest.fixture
def visit(browser):
    """Opens the page as its own visitor; at the end, nothing may have gone wrong in the browser, and
    nothing may have been asked of anybody but the server."""
    visits = []

    def open_page(url, expect_errors=False, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        page = context.new_page()
        page.set_default_timeout(30_000)
        wrong = []
        page.on("request", lambda asked: asked.url.startswith((url, "data:")) or wrong.append(asked.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if not expect_errors:
            page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        visits.append((context, wrong))
        page.goto(url)
        return page

    yield open_page
    for context, wrong in visits:
        context.close()
        assert wrong == []


@pytest.fixture
def pictures():
    RESULTS.mkdir(parents=True, exist_ok=True)
    return RESULTS
