"""Replicas that share an object store, behind routers."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from replica import expected, PROMPTS, Replica
from stores import _run, _seaweedfs, free_ports, MODEL, PROGRAM, TOOLS  # noqa: F401

DEPLOY = MODEL.parents[2] / "deploy"
RECURVE = PROGRAM.parent / "recurve"


class Router(Replica):
    """Asked as a server is. The header SESSION chooses the replica."""

    def __init__(self, port, timeout=120):
        self.port, self.address, self.timeout, self.key = port, f"127.0.0.1:{port}", timeout, None

    def turn(self, name, prompt, request=None, tokens=12, **fields):
        headers = {"Idempotency_Key": request} if request else {}
        body = {"prompt": prompt, "max_tokens": tokens, "seed": 7, **fields}
        if self.SESSION != "x-recurve-session":  # which names the session too
            body["session"] = name
        return self.ask("POST", "/v1/completions", body, **headers, **{self.SESSION: name})


class VllmRouter(Router):
    SESSION = "X-Session-ID"

    def __init__(self, run, replicas, folder):
        port, metrics = free_ports(2)
        super().__init__(port)
        self.process = run([TOOLS / "vllm-router", "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics, "--policy",
                            "consistent_hash", "--worker-urls", *(f"http://127.0.0.1:{one.port}" for one in replicas)],
                           f"http://127.0.0.1:{port}/health")


class Envoy(Router):
    SESSION = "x-recurve-session"

    def __init__(self, run, replicas, folder):
        port, admin = free_ports(2)
        super().__init__(port)
        config = folder / "envoy.yaml"
        config.write_text(subprocess.run(
            [sys.executable, DEPLOY / "envoy/configure.py", "--shared-sessions", "--listen", f"127.0.0.1:{port}", "--admin",
             f"127.0.0.1:{admin}", "--replicas", *("127.0.0.1:{}:{}".format(*one.ports) for one in replicas)],
            check=True, capture_output=True, text=True).stdout)
        self.process = run([TOOLS / "envoy", "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"],
                           f"http://127.0.0.1:{admin}/ready")


def serving(replicas, name, epoch):
    """The replica whose copy of the session is of that many turns."""
    return next(one for one in replicas if any(info["id"] == name and info["epoch"] == epoch
                                               for info in one.ask("GET", "/v1/sessions").body["data"]))


@pytest.mark.parametrize("router", [VllmRouter, Envoy])
def test_sessions_survive_replicas_behind_a_router(run, seaweedfs, tmp_path, router):
    prompts = [f" {number} and" for number in range(16)]
    texts = expected(run, prompts)
    prefix = f"routed-{router.__name__}"
    replicas = [Replica(run, seaweedfs, prefix, ["--drain-to-store"]) for _ in range(3)]
    router = router(run, replicas, tmp_path)
    names = [f"s{number}" for number in range(4)]
    for name in names:
        assert replicas[0].open(name).status == 201
    for turn, prompt in enumerate(prompts):
        for name in names:
            while (answer := router.turn(name, prompt, f"{name}.{turn}")).status != 200:
                assert answer.status in (409, 429, 500, 503), answer.body
            assert answer.text == texts[turn], (name, turn)
        if turn in (5, 10):  # the one that serves the first session
            serves = serving(replicas, names[0], turn + 1)
            serves.kill() if turn == 5 else serves.process.terminate()
            replicas.remove(serves)
    assert [replicas[0].get(name).body["epoch"] for name in names] == [len(prompts)] * 4


@pytest.mark.parametrize("router", [VllmRouter, Envoy])
def test_only_x_recurve_session_names_a_session(run, seaweedfs, tmp_path, router):
    replicas = [Replica(run, seaweedfs, f"named-{router.__name__}") for _ in range(2)]
    router = router(run, replicas, tmp_path)
    plain = expected(run, PROMPTS[:1])[0]
    assert replicas[0].open("s").status == 201
    for hint in ({"headers": {"X-Session-ID": "s"}}, {"body": {"user": "s"}}):
        answer = router.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 12, "seed": 7, **hint.get("body", {})},
                            **hint.get("headers", {}))
        assert answer.text == plain
    assert replicas[0].get("s").body["epoch"] == 0
    assert router.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 12, "seed": 7}, x_recurve_session="s").text == plain
    assert replicas[0].get("s").body["epoch"] == 1


def recurve(router, *arguments):
    done = subprocess.run([RECURVE, "--server", router.address, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_protocols_continue_a_session_at_the_same_replica(run, seaweedfs, tmp_path):
    texts = expected(run)
    replicas = [Replica(run, seaweedfs, "protocols") for _ in range(3)]
    router = Envoy(run, replicas, tmp_path)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        recurve(router, "session", "open", name, "--durability", "remote")
        said = recurve(router, "generate", "--session", name, "--prompt", PROMPTS[0], "--max-tokens", "12", "--seed", "7")
        assert said.rstrip("\n") == texts[0]
        assert router.turn(name, PROMPTS[1]).text == texts[1]
        assert router.ask("GET", f"/v1/sessions/{name}", x_recurve_session=name).body["commit"]["owner_epoch"] == 1
    owners = [serving(replicas, name, 2) for name in names]
    assert len(set(owners)) > 1


def begin_script(folder):
    """deploy/replicas.sh with a store: its process, its port, and what it has said when it serves."""
    port, = free_ports(1)
    script = subprocess.Popen(
        [DEPLOY / "replicas.sh", MODEL, "--local-store", "--listen", f"127.0.0.1:{port}", "--folder", folder, "--",
         "--threads", "1"], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}", "PYTHON": sys.executable})
    said = ""
    while "serves at" not in said:
        line = script.stdout.readline()
        assert line, said
        said += line
    return script, port, said


def test_what_the_script_runs_ends_with_it_if_it_is_killed(tmp_path):
    script, port, said = begin_script(tmp_path / "folder")
    processes = [int(number) for number in re.findall(r"process (\d+)", said)]
    children = pathlib.Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
    assert len(processes) == 3 and len(children) == 5  # with the router and the store
    script.kill()
    script.wait()
    while any(pathlib.Path(f"/proc/{number}").exists() for number in children):
        time.sleep(0.1)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port))


def test_the_script_runs_replicas_and_drains_them(tmp_path):
    """Twice: what the first run had is there in the second."""
    texts = {}
    for start in range(2):
        script, port, said = begin_script(tmp_path / "folder")
        try:
            assert said.count("replica ") == 3
            router = Envoy.__new__(Envoy)
            Router.__init__(router, port)
            for name, durability in (("none", "none"), ("remote", "remote")):
                if start == 0:
                    assert router.ask("POST", "/v1/sessions", {"session": name, "durability": durability},
                                      x_recurve_session=name).status == 201
                texts.setdefault(name, []).append(router.turn(name, PROMPTS[start]).text)
        finally:
            os.killpg(script.pid, signal.SIGINT)  # as Ctrl-C
        assert (script.wait(60), script.stdout.read()) == (0, "drains\n")
    assert texts["none"] == texts["remote"] and texts["none"][0] != texts["none"][1]


def test_the_script_says_what_is_wrong(tmp_path):
    def script(*arguments, **environment):
        done = subprocess.run([DEPLOY / "replicas.sh", *arguments], capture_output=True, text=True,
                              env={**os.environ, "PYTHON": sys.executable, **environment})
        return done.returncode, done.stderr

    code, usage = script()
    assert code == 2 and "--local-store" in usage
    assert script(MODEL, "--replicas", "none")[0] == 2
    assert script(MODEL, "--router", "nginx")[0] == 2
    code, said = script(MODEL, "--local-store", PATH="/usr/bin:/bin")
    assert code == 1 and "envoy is not in PATH" in said
    code, said = script("/nowhere", "--folder", tmp_path, PATH=f"{TOOLS}:{os.environ['PATH']}")
    assert code == 1 and "/nowhere" in said and "replica 0 did not start" in said


def test_a_killed_replicas_requests_are_answered_by_others(run, seaweedfs, tmp_path):
    """Plain ones are repeated by Envoy; of a session, a turn with an id is done once, and one without may be lost, never twice."""
    replicas = [Replica(run, seaweedfs, "repeated") for _ in range(2)]
    router = Envoy(run, replicas, tmp_path)
    names = [f"s{number}" for number in range(4)]
    for name in names:
        assert replicas[0].open(name).status == 201
    answers = {}

    def work(name):
        if name in names:
            answers[name] = router.turn(name, PROMPTS[0], f"{name}.0", tokens=300)
        else:
            answers[name] = router.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 300, "seed": 7})

    workers = [threading.Thread(target=work, args=(name,)) for name in (*names, *range(4))]
    for worker in workers:
        worker.start()
    running = 0
    while not running:  # the first one works for some of them
        text = replicas[0].ask("GET", "/metrics").body["bytes"].decode()
        running = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("recurve_requests_running"))
    replicas[0].kill()
    for worker in workers:
        worker.join()
    assert len({answer.text for answer in answers.values()}) == 1
    assert [replicas[1].get(name).body["epoch"] for name in names] == [1] * 4
