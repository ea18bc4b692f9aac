"""The container image: what is in it, that two builds are the same, and that it serves without privileges, on a
read-only root, with little memory and no capabilities."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from conftest import ROOT
from containers import LIMITS, PAGES, assert_listens, run
from ports import free_port
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

CLIENT = pathlib.Path(os.environ["RECURVE_BIN"]) / "recurve"
MOST_MEMORY = 512 << 20


def inspect(containers, name):
    return json.loads(containers.podman("image", "inspect", name))[0]


class Running:
    """A container of the image, as an operator would start it."""

    def __init__(self, containers, *flags, cpus="1"):
        self.containers = containers
        self.grpc, self.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.id = containers.podman(
            "run", "--detach", *LIMITS, "--network", "host", "--read-only", "--cap-drop", "all",
            "--security-opt", "no-new-privileges", "--memory", str(MOST_MEMORY), "--cpus", cpus,
            "--env", f"RECURVE_SERVER_LISTEN={self.grpc}", "--env", f"RECURVE_SERVER={self.grpc}",
            "--env", f"RECURVE_SERVER_HTTP={self.http}", "--env", "RECURVE_SERVER_METRICS=",
            "localhost/recurve", *flags).strip()

    def client(self, *arguments):
        return run(CLIENT, "--server", self.grpc, *arguments)

    def logs(self):
        done = subprocess.run(["podman", *self.containers.storage, "logs", self.id],
                              capture_output=True, text=True)
        return done.stdout + done.stderr

    def state(self):
        return json.loads(self.containers.podman("inspect", self.id))[0]["State"]

    def remove(self):
        self.containers.podman("rm", "--force", "--time", "0", self.id)


@pytest.fixture
def running(containers, built):
    one = Running(containers)
    yield one
    one.remove()


def test_it_is_small_and_says_what_it_is(containers, built, tree):
    said = inspect(containers, "localhost/recurve")
    base = inspect(containers, "localhost/base")
    model = sum(file.stat().st_size for file in
                (ROOT / "weights_tools/demo/xlstm-books").iterdir())
    assert said["Size"] - base["Size"] - model < 80e6
    assert int(re.search(r"without its base: (\d+) MB", built)[1]) < 80
    version = run(tree / "bin/recurve-server", "--version")
    labels = said["Labels"]
    assert f"recurve-server {labels['org.opencontainers.image.version']}" in version
    assert labels["org.opencontainers.image.revision"] in version
    assert said["User"] == "65532:65532"
    assert said["Config"]["Entrypoint"] == ["/opt/recurve/bin/recurve-server"]
    assert said["Healthcheck"]["Test"][-1] == "health"


def test_the_same_tree_gives_the_same_layers(containers, built, tree):
    containers.build(ROOT / "deploy/image.sh", tree, "--model",
                     ROOT / "weights_tools/demo/xlstm-books", tag="localhost/again",
                     base="localhost/base")
    first, second = (inspect(containers, f"localhost/{name}") for name in ("recurve", "again"))
    assert len(first["RootFS"]["Layers"]) >= 2
    assert first["RootFS"] == second["RootFS"]


def test_what_it_is_made_of(containers, built, tmp_path):
    container = containers.podman("create", *LIMITS, "localhost/recurve").strip()
    containers.podman("cp", f"{container}:/opt/recurve", tmp_path)
    listed = tmp_path / "recurve/sbom.spdx.json"
    document = parse_file(str(listed))
    assert validate_full_spdx_document(document) == []
    names = {file.name for file in document.files}
    there = {f"./{file.relative_to(tmp_path / 'recurve')}"
             for folder in ("bin", "lib") for file in (tmp_path / "recurve" / folder).iterdir()}
    assert names == there
    pages = tmp_path / "recurve/share"
    assert {str(file.relative_to(pages)) for file in pages.rglob("*.1")} == {p for p in PAGES if p.endswith(".1")}
    for page in PAGES:
        assert (pages / page).stat().st_size > 1000
    packages = {package.name: package.version for package in document.packages}
    installed = run("dpkg-query", "-W", "-f", "${Version}", "libssl3")
    assert packages["libssl3"] == installed
    assert packages["marked"] == run("dpkg-query", "-W", "-f", "${Version}", "libjs-marked")


def test_it_answers_is_well_and_stops_within_its_grace(running, containers):
    assert running.client("health", "--wait", "60") == "SERVING\n"
    containers.podman("healthcheck", "run", running.id)
    text = running.client("generate", "--prompt", "Once", "--max-tokens", "8", "--temperature", "0")
    assert text.strip()
    # One core and so much memory is what it plans with.
    assert "cpu, 1 thread" in running.client("info")
    limits = json.loads(running.client("info", "--json"))["server"]["limits"]
    host_memory = limits["max_host_bytes"]
    assert 0 < int(host_memory) < MOST_MEMORY

    # Its log is JSON, all of it.
    events = [json.loads(line)["event"] for line in running.logs().splitlines()]
    assert "serving" in events and "text" in events

    # What is under way when it is told to stop is answered.
    answer = subprocess.Popen(
        [CLIENT, "--server", running.grpc, "generate", "--prompt", "Once", "--max-tokens", "600",
         "--temperature", "1", "--ignore-eos"], stdout=subprocess.PIPE, text=True)
    answer.stdout.read(1)
    began = time.monotonic()
    containers.podman("stop", "--time", "40", running.id)
    assert time.monotonic() - began < 40
    answer.communicate()
    assert answer.returncode == 0
    assert running.state()["ExitCode"] == 0

    # And it starts again as it was.
    containers.podman("start", running.id)
    assert running.client("health", "--wait", "60") == "SERVING\n"
    assert running.client("generate", "--prompt", "Once", "--max-tokens", "8", "--temperature",
                          "0") == text


def ask(http, seed):
    request = urllib.request.Request(
        f"http://{http}/v1/completions", method="POST",
        headers={"Content-Type": "application/json"},
        data=json.dumps({"prompt": "Once upon a time " * 40, "max_tokens": 16, "seed": seed,
                         "temperature": 1}).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_at_its_planned_size_it_is_never_killed_for_memory(running):
    assert running.client("health", "--wait", "60") == "SERVING\n"
    for number in range(40):  # sessions fill what was planned for them
        running.client("session", "open", f"s{number}")
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        statuses = list(pool.map(lambda seed: ask(running.http, seed), range(160)))
    assert set(statuses) <= {200, 429, 503} and statuses.count(200) >= 16
    state = running.state()
    assert state["Running"] and not state["OOMKilled"]


def test_what_does_not_fit_its_memory_is_refused_before_it_is_taken(containers, built):
    one = Running(containers, "--slots", "100000")
    assert containers.podman("wait", one.id).strip() == "1"
    assert "--slots" in one.logs()
    assert not one.state()["OOMKilled"]
    one.remove()


def test_it_lets_other_machines_in_on_purpose(containers, built, tree):
    """The listeners are those of the image; it starts as the runbook says."""
    said = inspect(containers, "localhost/recurve")["Config"]["Env"]
    variables = dict(one.split("=", 1) for one in said if one.startswith("RECURVE_SERVER_"))
    del variables["RECURVE_SERVER_MODEL"]
    with pytest.raises(AssertionError, match="other machines"):
        assert_listens(tree, variables)
    assert_listens(tree, variables | {"RECURVE_SERVER_INSECURE_NETWORK": "true"})
    book = (ROOT / "deploy/README.md").read_text()
    assert "-e RECURVE_SERVER_INSECURE_NETWORK=true" in book


def test_the_container_file_is_clean():
    hadolint = pathlib.Path(os.sys.executable).parent / "hadolint"
    run(hadolint, ROOT / "deploy/Containerfile")


def test_the_scripts_are_clean():
    run("shellcheck", "--external-sources", *(ROOT / "deploy").glob("*.sh"),
        *(ROOT / "tests/deploy").glob("*.sh"), ROOT / "tests/deploy.sh", cwd=ROOT)
