"""The loss of replicas under load: recurve-loadgen holds conversations through a router with servers that share a store, while one is
killed and one drained each minute, and the store is slow and fails at times.

    tests/server/object_store/run.sh --routed [--seconds 300] [--streams 24] [--turns 8] [--delay 0.1] [--period 20]

Each acknowledged turn is compared, to the token, with the same turn of one server that nothing happens to, and each session's count of
commits in the store with the turns that were acknowledged."""

import argparse
import collections
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from losses import Store
from replica import Replica
from routers import Envoy
from stores import PROGRAM, runner, seaweedfs_at

LOADGEN = PROGRAM.parent / "recurve-loadgen"
EVENTS = KILL, DRAIN, OUTAGE = "kill -9", "drain", "store fails for 10 s"


class Load:
    """Conversations of sessions of this durability at an address, and what was answered: {(conversation, turn): ids}."""

    def __init__(self, folder, address, args, seconds, durability):
        self.answers_file = folder / f"answers-{durability}"
        self.report_file = folder / f"report-{durability}"
        self.process = subprocess.Popen(
            [str(part) for part in (
                LOADGEN, "--server", address, "--streams", args.streams, "--turns", args.turns, "--prompt-tokens", 6, "--output-tokens", 12,
                "--warmup", 0, "--duration", seconds, "--cooldown", 60, "--think", args.think, "--durability", durability, "--leave-open",
                "--answers", self.answers_file, "--json", self.report_file, "--quiet")], stdout=subprocess.DEVNULL)

    def wait(self):
        assert self.process.wait() == 0
        lines = [json.loads(line) for line in self.answers_file.read_text().splitlines()]
        self.answers = {(line["conversation"], line["turn"]): line["ids"] for line in lines}
        assert len(self.answers) == len(lines), "a turn was acknowledged twice"
        self.turns = collections.Counter(line["session"] for line in lines)
        self.report = json.loads(self.report_file.read_text())["trials"][0]
        return self


def disturb(replicas, start, store, ended, period, results):
    """In turn every period: kill -9, a drain, the store fails. What ended is started again at the same ports."""
    number = 0
    while not ended.wait(period):
        what = EVENTS[number % 3]
        at = number // 3 % len(replicas)
        number += 1
        if what == OUTAGE:
            store.failing = True
            results[what] += 1
            ended.wait(10)
            store.failing = False
            continue
        server = replicas[at]
        server.process.send_signal(signal.SIGKILL if what == KILL else signal.SIGTERM)
        server.process.wait()
        results[what] += 1
        replicas[at] = start(server.ports)


def measure(args, folder):
    """Whether all went well, and how often each event happened."""
    runs = runner(folder)
    run = next(runs)
    flags = ["--ttft-ms", "0", "--session-memory", "500MB"]
    alone = Replica(run, None, flags=flags)
    store = Store(seaweedfs_at(run, folder, args.volumes), args.delay, args.losing)

    def start(ports=()):
        return Replica(run, store.url, "routed", [*flags, "--drain-seconds", "20", "--drain-to-store"], timeout=30, ports=ports)

    replicas = [start() for _ in range(3)]
    router = Envoy(run, replicas, folder)
    ended, disturbed = threading.Event(), collections.Counter()
    disturbing = threading.Thread(target=disturb, args=(replicas, start, store, ended, args.period, disturbed))
    disturbing.start()
    routed = Load(folder, router.address, args, args.seconds, "remote").wait()
    ended.set()
    disturbing.join()
    conversations = 1 + max(conversation for conversation, _ in routed.answers)
    wrong = compare(folder, alone, args, routed, conversations)
    fresh = start()
    commits = {name: fresh.get(name).body["epoch"] for name in routed.turns}
    lost = sum(max(0, turns - commits[name]) for name, turns in routed.turns.items())
    # The run's end cancels a turn of each stream at most, which the server may have committed.
    further = sorted(name for name, turns in routed.turns.items() if commits[name] > turns)
    twice = sum(max(0, commits[name] - turns - 1) for name, turns in routed.turns.items()) + max(0, len(further) - args.streams)
    full = sum(commits[name] > args.turns for name in routed.turns)
    next(runs, None)
    report, total = routed.report, routed.report["latency"]["end_to_end"]
    print(f"{len(routed.answers)} turns of {len(routed.turns)} sessions in {args.seconds} s, 3 servers behind Envoy, "
          f"each request to the store + {args.delay * 1e3:.0f} ms")
    print(f"  lost {lost}, twice {twice + full}, with other tokens {len(wrong)}, failed {report['requests']['failed']} "
          f"{report['requests']['errors']}, attempts that were repeated {report['requests']['repeated']}")
    print(f"  a turn: median {total['p50_ms']:.0f} ms, 99 % {total['p99_ms']:.0f} ms, most {total['max_ms']:.0f} ms")
    print(f"  events {dict(disturbed)}; requests to the store {dict(store.count)}")
    good = not (lost or twice or full or wrong or report["requests"]["failed"]) and len(routed.answers) > args.streams
    return good, disturbed


def compare(folder, alone, args, routed, conversations):
    """The turns whose tokens are not those of one server alone, which is asked until it has had as many conversations."""
    seconds = 4
    while True:
        reference = Load(folder, alone.address, argparse.Namespace(**{**vars(args), "think": 0}), seconds, "none").wait()
        if all(key in reference.answers for key in routed.answers):
            return [key for key, ids in routed.answers.items() if ids != reference.answers[key]]
        seconds *= 2
        assert seconds < 2000, conversations


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("seconds", 300), ("streams", 24), ("turns", 8), ("delay", 0.1), ("losing", 0.002), ("period", 20.0), ("think", 0.5), ("volumes", 100)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        good, _ = measure(args, pathlib.Path(folder))
        print(f"  {time.monotonic() - began:.0f} s in all")
    sys.exit(not good)


def test_turns_survive_replicas_under_load(tmp_path):
    """The short form: each kind of event at least once, for which a busy machine takes longer."""
    seconds, events = 20, {}
    while not all(events.get(event) for event in EVENTS):
        assert seconds < 200, events
        folder = tmp_path / str(seconds)
        folder.mkdir()
        good, events = measure(argparse.Namespace(seconds=seconds, streams=12, turns=6, delay=0.02, losing=0.005, period=1.5, think=0.2,
                                                  volumes=8), folder)
        assert good, events
        seconds *= 2


if __name__ == "__main__":
    main()
