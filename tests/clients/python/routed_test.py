"""Both clients behind Envoy, with replicas that share sessions, of which some are killed and drained."""

import asyncio
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest
import recurve
from server import BIN, Server

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402

MODEL = ROOT / "weights_tools/demo/xlstm-books"
TURNS = 12


@pytest.fixture
def replicas(tmp_path):
    """Envoy's address, and the processes of the replicas."""
    address = f"127.0.0.1:{free_port()}"
    tools = pathlib.Path(sys.executable).parent
    script = subprocess.Popen(
        [ROOT / "deploy/replicas.sh", MODEL, "--local-store", "--listen", address, "--folder", tmp_path / "folder", "--",
         "--threads", "1", "--ttft-ms", "0"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "RECURVE_BIN": str(BIN), "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable})
    said = ""
    while "serves at" not in said:
        line = script.stdout.readline()
        assert line, said
        said += line
    yield address, [int(process) for process in re.findall(r"process (\d+)", said)]
    os.killpg(script.pid, signal.SIGTERM)
    assert script.wait(60) == 0


def alone():
    """The ids of each turn, and of a plain answer, by one server."""
    with Server(MODEL) as server, recurve.Client(server.address) as client, client.session() as session:
        turns = [session.generate(f" {turn} and", max_tokens=40, seed=7).ids for turn in range(TURNS)]
        return turns, client.generate("Once", max_tokens=200, seed=7).ids


def disturbed(processes, done, turns):
    """Kills one replica and drains another, each once a part of the turns was taken."""
    for process, which, part in ((processes[0], signal.SIGKILL, 4), (processes[1], signal.SIGTERM, 2)):
        while len(done) < turns // part:
            if not done.waits():
                return
        os.kill(process, which)


class Done(list):
    """Turns that were taken; others wait for the next one."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()
        self.ended = False

    def add(self, one):
        with self.changed:
            self.append(one)
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def waits(self):
        with self.changed:
            return self.changed.wait(0.2) or not self.ended


@pytest.mark.parametrize("blocking", [True, False])
def test_turns_end_once_and_plain_requests_are_answered(replicas, blocking):
    address, processes = replicas
    names = [f"s{number}" for number in range(6)]
    expected, plain = alone()
    done, wrong = Done(), []
    retry = recurve.Retry(attempts=40, max_backoff=0.5)

    def check(name, turn, ids, should):
        if ids != should:
            wrong.append((name, turn, ids, should))
        done.add(name)

    def hold(name):
        with recurve.Client(address, retry=retry) as client:
            session = client.session(name, durability="remote")
            for turn in range(TURNS):
                check(name, turn, session.generate(f" {turn} and", max_tokens=40, seed=7).ids, expected[turn])
                check(name, "plain", client.generate("Once", max_tokens=200, seed=7).ids, plain)

    async def hold_all():
        async with recurve.AsyncClient(address, retry=retry) as client:

            async def one(name):
                session = await client.session(name, durability="remote")
                for turn in range(TURNS):
                    answer = await session.generate(f" {turn} and", max_tokens=40, seed=7)
                    check(name, turn, answer.ids, expected[turn])
                    check(name, "plain", (await client.generate("Once", max_tokens=200, seed=7)).ids, plain)

            await asyncio.gather(*(one(name) for name in names))

    disturbs = threading.Thread(target=disturbed, args=(processes, done, 2 * TURNS * len(names)))
    disturbs.start()
    try:
        if blocking:
            workers = [threading.Thread(target=hold, args=(name,)) for name in names]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        else:
            asyncio.run(hold_all())
    finally:
        done.end()
        disturbs.join()
    assert not wrong and len(done) == 2 * TURNS * len(names)
    with recurve.Client(address, retry=retry) as client:
        assert [client.session(name).get().epoch for name in names] == [TURNS] * len(names)


def test_the_command_line_repeats_a_turn_by_its_id(replicas):
    address, processes = replicas

    def recurve_said(*arguments):
        return subprocess.run([BIN / "recurve", "--server", address, *arguments], capture_output=True, text=True)

    opened = recurve_said("session", "open", "s", "--durability", "remote")
    assert opened.returncode == 0, opened.stderr
    turn = ("generate", "--session", "s", "--request-id", "r1", "--prompt", "Once", "--max-tokens", "8", "--seed", "7")
    first = recurve_said(*turn)
    assert first.returncode == 0, first.stderr
    for process in processes[:2]:
        os.kill(process, signal.SIGKILL)
    while (again := recurve_said(*turn)).returncode != 0:
        assert again.returncode in (3, 4), again.stderr
    assert again.stdout == first.stdout
    info = recurve_said("--json", "session", "get", "s")
    assert json.loads(info.stdout)["epoch"] == "1", info
