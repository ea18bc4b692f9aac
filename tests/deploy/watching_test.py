"""What watches the server and stands in front of it: Prometheus' rules before promtool, every metric
that an alert, a dashboard or the autoscaler names against a server's own, the run-book, the
composition, and Envoy in front of two replicas."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import yaml
from conftest import ROOT
from containers import assert_listens, run
from ports import free_port

sys.path.append(str(ROOT / "tests/clients_of_others/tls"))
from certificates import Authority  # noqa: E402

DEPLOY = ROOT / "deploy"
HERE = pathlib.Path(__file__).parent
BIN = pathlib.Path(os.environ["RECURVE_BIN"])
MODEL = ROOT / "weights_tools/demo/xlstm-books"
ENVOY = pathlib.Path(sys.executable).parent / "envoy"


class Replica:
    """A server with both frontends and a name."""

    def __init__(self, name, *flags, client=()):
        self.name = name
        self.grpc, self.http, self.metrics = (free_port() for _ in range(3))
        self.process = subprocess.Popen(
            [BIN / "recurve-server", "--model", MODEL, "--threads", "1", "--name", name, "--ttft-ms", "0",
             "--listen", f"127.0.0.1:{self.grpc}", "--http", f"127.0.0.1:{self.http}",
             "--metrics", f"127.0.0.1:{self.metrics}", *flags], stderr=subprocess.DEVNULL)
        run(BIN / "recurve", *client, "--server", f"127.0.0.1:{self.grpc}", "health", "--wait", "60")

    def stop(self, kill=False):
        self.process.kill() if kill else self.process.terminate()
        return self.process.wait()

    def sessions(self):
        said = run(BIN / "recurve", "--server", f"127.0.0.1:{self.grpc}", "--json", "session", "list")
        return set(re.findall(r'"name": *"([^"]+)"', said))


@pytest.fixture(scope="module")
def metrics():
    """The names of all series of a server."""
    one = Replica("one")
    with urllib.request.urlopen(f"http://127.0.0.1:{one.metrics}/metrics") as answer:
        text = answer.read().decode()
    promtool = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                              capture_output=True)
    assert (promtool.returncode, promtool.stdout + promtool.stderr) == (0, "")
    assert one.stop() == 0
    return set(re.findall(r"^(recurve_\w+)", text, re.M))


def test_what_the_endpoint_picker_reads(metrics):
    text = (ROOT / "deploy/chart/templates/pool.yaml").read_text()
    named = re.findall(r"Spec: (\w+)", text)
    assert len(named) == 3 and set(named) <= metrics


def test_rules_by_promtool():
    run("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    run("promtool", "test", "rules", HERE / "alerts_rules_test.yml")


def test_every_metric_that_is_named_exists(metrics):
    dashboard = json.loads((DEPLOY / "grafana/recurve.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"]
                   for target in panel.get("targets", [])]
    assert len(expressions) > 30
    rules = (DEPLOY / "prometheus/alerts.yml").read_text()
    scaled = (DEPLOY / "chart/templates/watching.yaml").read_text()
    rules_tests = (HERE / "alerts_rules_test.yml").read_text()
    named = set(re.findall(r"\brecurve_\w+", " ".join([*expressions, rules, scaled, rules_tests])))
    assert len(named) > 20
    assert named - metrics == set()


def test_the_dashboards_expressions_are_prometheus_own(tmp_path):
    dashboard = json.loads((DEPLOY / "grafana/recurve.json").read_text())
    rules = [{"record": f"a:b{number}",
              "expr": target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".+")}
             for number, target in enumerate(
                 target for panel in dashboard["panels"] for target in panel.get("targets", []))]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    run("promtool", "check", "rules", tmp_path / "rules.yml")


def test_each_alert_has_its_page():
    book = (DEPLOY / "README.md").read_text()
    pages = set(re.findall(r"^#### (\w+)$", book, re.M))
    alerts = [rule for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
              for rule in group["rules"]]
    assert {rule["alert"] for rule in alerts} == pages
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"deploy/README.md#{rule['alert'].lower()}"


def compose(files, **environment):
    """The exit code, and the composition of these files or what was wrong."""
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "podman-compose", *sum((["-f", DEPLOY / one] for one in files), []), "config"],
        text=True, capture_output=True, env={**os.environ, **environment})
    return done.returncode, yaml.safe_load(done.stdout) if done.returncode == 0 else done.stderr


STORE = {"STATE_STORE": "s3://bucket/prefix", "STATE_ENDPOINT": "https://store"}


@pytest.mark.parametrize("files, variables, count", [
    (["compose.yaml"], {}, 2), (["compose.yaml", "compose.store.yaml"], STORE, 3)])
def test_the_composition(tree, files, variables, count):
    code, refused = compose(files, MODEL="", **variables)
    assert code != 0 and "the folder of a checkpoint" in refused
    code, composed = compose(files, MODEL="/models/one", **variables)
    assert code == 0, composed
    services = composed["services"]
    mounted = dict(volume.removesuffix(":ro").split(":") for one in services.values() for volume in one["volumes"])
    config = {target: DEPLOY / source for source, target in mounted.items() if source.startswith("./")}
    help_text = run(tree / "bin/recurve-server", "--help")
    envoy = yaml.safe_load(config["/etc/envoy/envoy.yaml"].read_text())
    scraped = yaml.safe_load(config["/etc/prometheus/prometheus.yml"].read_text())
    lists = [pathlib.Path("/etc/prometheus", file) for one in scraped["scrape_configs"][0]["file_sd_configs"] for file in one["files"]]
    targets = {target.split(":")[0] for one in lists for group in yaml.safe_load(config[str(one)].read_text())
               for target in group["targets"]}
    upstreams = [{lb["endpoint"]["address"]["socket_address"]["address"]
                  for lb in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]}
                 for cluster in envoy["static_resources"]["clusters"]]
    replicas = {name for name, one in services.items() if "environment" in one and
                "RECURVE_SERVER_DRAIN_SECONDS" in one["environment"]}
    assert len(replicas) == count and replicas == targets
    assert upstreams == [replicas] * 4
    for name, one in services.items():
        if name in replicas:
            assert "/models/one:/model:ro" in one["volumes"]
            assert [key for key in one["environment"] if not key.startswith("AWS_") and f"Env:{key}" not in help_text] == []
            image = dict(re.findall(r"(RECURVE_SERVER_(?:LISTEN|HTTP|METRICS))=(\S+)",
                                    (DEPLOY / "Containerfile").read_text()))
            assert len(image) == 3
            assert_listens(tree, image | one["environment"])
            grace = int(one["stop_grace_period"].removesuffix("s"))
            assert grace > int(one["environment"]["RECURVE_SERVER_DRAIN_SECONDS"])
        for volume in one["volumes"]:
            source = volume.rsplit(":", 2)[0] if volume.endswith(":ro") else volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), source
            elif not source.startswith("/"):
                assert source in composed["volumes"]
    said = subprocess.run([ENVOY, "--mode", "validate", "-c", config["/etc/envoy/envoy.yaml"]], capture_output=True, text=True)
    assert said.returncode == 0 and "deprecated" not in said.stderr, said.stderr


def test_a_composition_with_a_store_needs_its_address():
    for name, sentence in (("STATE_STORE", "s3://BUCKET/PREFIX"), ("STATE_ENDPOINT", "the URL of the object store")):
        code, refused = compose(["compose.yaml", "compose.store.yaml"], MODEL="/models/one", **(STORE | {name: ""}))
        assert code != 0 and sentence in refused, refused


def test_the_configuration_for_shared_sessions():
    printed = configured("--replicas", "recurve-0", "recurve-1", "recurve-2", "--shared-sessions")
    written = (DEPLOY / "envoy/shared.yaml").read_text()
    assert written.partition("\n")[2] == printed
    shared, alone = (yaml.safe_load(text)["static_resources"]["clusters"] for text in (
        written, (DEPLOY / "envoy/envoy.yaml").read_text()))
    assert [bool(cluster.get("health_checks")) for cluster in shared] == [True] * 4
    # A session that only one server has is not sent to another one.
    assert [bool(cluster.get("health_checks")) for cluster in alone] == [True, False, True, False]


def configured(*flags):
    return run(sys.executable, DEPLOY / "envoy/configure.py", *flags)


class Envoy:
    """Envoy in front of these replicas, with these flags of configure.py."""

    def __init__(self, replicas, folder, *flags, client=(), serves=True):
        self.port, self.admin = free_port(), free_port()
        (folder / "envoy.yaml").write_text(configured(
            *flags, "--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}", "--replicas",
            *(f"127.0.0.1:{one.grpc}:{one.http}" for one in replicas)))
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [ENVOY, "-c", folder / "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1",
                 "--log-level", "warning"], stderr=log, stdout=log)
        run("curl", "-sS", "--fail", "--retry", "60", "--retry-delay", "1", "--retry-all-errors",
            f"http://127.0.0.1:{self.admin}/ready")
        if serves:
            run(BIN / "recurve", *client, "--server", f"127.0.0.1:{self.port}", "health", "--wait", "60")

    def stop(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def front(tmp_path):
    """Two replicas and Envoy, as composed, in front of them: (replicas, Envoy's port)."""
    replicas = [Replica("recurve-0"), Replica("recurve-1")]
    envoy = Envoy(replicas, tmp_path)
    yield replicas, envoy.port
    envoy.stop()
    for one in replicas:
        if one.process.poll() is None:
            one.stop()


def complete(port, **fields):
    """The name of the replica that answered, and the answer's text."""
    headers = {"Content-Type": "application/json"}
    if session := fields.pop("session", None):
        headers["x-recurve-session"] = session
    body = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0} | fields
    with urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)) as answer:
        said = json.load(answer)
    return said["model"], said["choices"][0]["text"]


def test_sessions_stick_and_plain_requests_go_round(front):
    replicas, port = front
    client = [BIN / "recurve", "--server", f"127.0.0.1:{port}"]
    names = [f"story-{number}" for number in range(12)]
    for name in names:  # opened by gRPC, which says the name in its metadata
        run(*client, "session", "open", name)
    held = [one.sessions() for one in replicas]
    assert held[0] | held[1] == set(names) and held[0] and held[1] and not held[0] & held[1]
    for name in names:  # continued by the other frontend, and by this one
        model, _ = complete(port, session=name)
        assert name in held[int(model[-1])]
        run(*client, "generate", "--session", name, "--prompt", "", "--max-tokens", "2")
    answered = collections.Counter(complete(port)[0] for _ in range(30))
    assert set(answered) == {"recurve-0", "recurve-1"}


def test_a_killed_replicas_plain_requests_are_answered_by_the_other(front):
    replicas, port = front
    _, text = complete(port)
    asked = [subprocess.Popen(
        ["curl", "-sS", "--fail-with-body", f"http://127.0.0.1:{port}/v1/completions", "-d",
         json.dumps({"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0})],
        stdout=subprocess.PIPE, text=True) for _ in range(8)]
    # Not before both have some of them.
    for one in replicas:
        run("bash", "-c", f"until curl -sS http://127.0.0.1:{one.metrics}/metrics | "
            "grep -q '^recurve_requests_running{.*} [1-9]'; do :; done", timeout=60)
    replicas[0].stop(kill=True)
    said = [one.communicate(timeout=120)[0] for one in asked]
    assert [one.returncode for one in asked] == [0] * 8, said
    answers = [json.loads(one) for one in said]
    assert {answer["model"] for answer in answers} == {"recurve-1"}
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert answers[0]["choices"][0]["text"].startswith(text)


def test_a_drain_loses_no_request(front):
    replicas, port = front
    asked = [subprocess.Popen(
        ["curl", "-sS", "--fail-with-body", f"http://127.0.0.1:{port}/v1/completions", "-d",
         json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0})],
        stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for one in replicas:
        run("bash", "-c", f"until curl -sS http://127.0.0.1:{one.metrics}/metrics | "
            "grep -q '^recurve_requests_running{.*} [1-9]'; do :; done", timeout=60)
    replicas[0].process.terminate()
    texts = {complete(port)[1] for _ in range(20)}  # while it drains, and after
    assert len(texts) == 1
    assert replicas[0].process.wait(60) == 0
    said = [one.communicate(timeout=120)[0] for one in asked]
    assert [one.returncode for one in asked] == [0] * 8, said
    answers = [json.loads(one) for one in said]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1


def test_tls_ends_at_envoy_and_is_spoken_to_the_servers(tmp_path, tmp_path_factory):
    authority = Authority(tmp_path)
    certificate, other = authority.sign(), authority.sign()
    client = ["--tls-ca", authority.ca]
    replicas = [Replica(f"recurve-{number}", *certificate.flags, client=client) for number in (0, 1)]
    towards_clients = ["--cert", other.cert, "--key", other.key, "--servers-name", "localhost"]
    envoy = Envoy(replicas, tmp_path, *towards_clients, "--servers-ca", authority.ca, client=client)
    run(BIN / "recurve", *client, "--server", f"127.0.0.1:{envoy.port}", "generate", "--prompt",
        "Once", "--max-tokens", "2")
    answer = json.loads(run("curl", "-sS", "--fail", "--cacert", authority.ca,
                            f"https://127.0.0.1:{envoy.port}/v1/completions", "-d",
                            '{"prompt": "Once", "max_tokens": 2}'))
    assert answer["usage"]["completion_tokens"] == 2
    # A server that somebody else has signed for is not spoken with.
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    envoy.stop()
    envoy = Envoy(replicas, tmp_path, *towards_clients, "--servers-ca", stranger.ca, serves=False)
    said = run("curl", "-sS", "--cacert", authority.ca, "-w", "%{http_code}",
               f"https://127.0.0.1:{envoy.port}/v1/models")
    assert said.endswith("503")
    stats = run("curl", "-sS", f"http://127.0.0.1:{envoy.admin}/stats?filter=http.ssl.fail_verify_error")
    assert sum(map(int, re.findall(r": (\d+)$", stats, re.M))) > 0, stats
    envoy.stop()
    for one in replicas:
        assert one.stop() == 0
