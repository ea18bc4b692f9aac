"""Measures what is lost with servers that share a store: clients hold conversations with three of them while servers are killed,
drained and paused for longer than a take-over, and the store is slow, loses answers and fails.

    tests/server/object_store/run.sh --losses [--turns 10000] [--sessions 48] [--delay 0.1]

Each answer is compared with that of a server alone, and each session's count of commits with the turns that were answered."""

import argparse
import collections
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import zlib

from replica import expected, Proxy, Replica
from stores import runner, seaweedfs_at


class Store(Proxy):
    """Each request waits; some lose their answer; at times all fail."""

    def __init__(self, url, delay, losing):
        self.delay, self.losing, self.failing, self.chance = delay, losing, False, random.Random(1)
        self.count = collections.Counter()
        super().__init__(url)

    def takes(self, head):
        time.sleep(self.delay)
        if self.failing:
            raise OSError
        self.count[head.partition(" ")[0]] += 1
        lost = self.chance.random() < self.losing
        self.count["lost answers"] += lost
        return lost


class Clients:
    def __init__(self, replicas, sessions, turns, prompts, texts):
        self.replicas, self.prompts, self.texts = replicas, prompts, texts
        self.lock = threading.Lock()
        self.todo = collections.deque((f"s{number}", turns // sessions) for number in range(sessions))
        self.results, self.seconds = collections.Counter(), []
        self.wrong, self.done = [], {}

    def hold(self):
        while True:
            with self.lock:
                if not self.todo:
                    return
                name, turns = self.todo.popleft()
            self.repeat(name, lambda server: server.open(name), ("exists",))
            for turn in range(turns):
                self.take_turn(name, turn)
            with self.lock:
                self.done[name] = turns

    def take_turn(self, name, turn):
        began = time.monotonic()
        answer = self.repeat(name, lambda server: server.turn(name, self.prompts[turn], f"{name}.{turn}"), ())
        with self.lock:
            self.seconds.append(time.monotonic() - began)
            self.results["turns"] += 1
            if answer.text != self.texts[turn]:
                self.wrong.append((name, turn, answer.text, self.texts[turn]))

    def repeat(self, name, call, enough):
        """At the replica of the session's hash, and at others as long as it does not answer."""
        at = zlib.crc32(name.encode())
        while True:
            try:
                answer = call(self.replicas[at % len(self.replicas)])
            except (OSError, ValueError):
                self.results["no answer"] += 1
                at += 1
                time.sleep(0.05)
                continue
            if answer.status in (200, 201) or any(why in answer.message for why in enough):
                return answer
            self.results[answer.status] += 1
            if answer.status not in (409, 429, 503):
                self.wrong.append((name, answer.status, answer.message))
                raise AssertionError(answer.message)
            if answer.status != 409:
                at += 1
                time.sleep(0.05)


def disturb(replicas, start, store, ended, results):
    chance = random.Random(2)
    while not ended.wait(3):
        at = chance.randrange(len(replicas))
        what = chance.choice(["kill -9", "drain", "pause", "store fails"])
        results[what] += 1
        server = replicas[at]
        if what == "store fails":
            store.failing = True
            ended.wait(10)
            store.failing = False
            continue
        if what == "pause":
            server.process.send_signal(signal.SIGSTOP)
            ended.wait(8)
            server.process.send_signal(signal.SIGCONT)
            continue
        server.process.send_signal(signal.SIGKILL if what == "kill -9" else signal.SIGTERM)
        server.process.wait()
        replicas[at] = start()


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("turns", 10000), ("sessions", 100), ("clients", 32), ("replicas", 3), ("delay", 0.1), ("losing", 0.002)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, pathlib.Path(folder))


def measure(args, folder):
    runs = runner(folder)
    run = next(runs)
    url = seaweedfs_at(run, folder, 100)  # what is removed stays on the disk for a while
    store = Store(url, args.delay, args.losing)
    prompts = [f" and {number}" for number in range(args.turns // args.sessions)]
    texts = expected(run, prompts)

    def start():
        return Replica(run, store.url, "losses", ["--drain-seconds", "20"], timeout=20)

    replicas = [start() for _ in range(args.replicas)]
    clients = Clients(replicas, args.sessions, args.turns, prompts, texts)
    ended, disturbed = threading.Event(), collections.Counter()
    disturbing = threading.Thread(target=disturb, args=(replicas, start, store, ended, disturbed))
    workers = [threading.Thread(target=clients.hold) for _ in range(args.clients)]
    began = time.monotonic()
    for thread in (disturbing, *workers):
        thread.start()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - began
    ended.set()
    disturbing.join()
    store.losing = 0
    fresh = start()
    commits = {name: fresh.get(name).body["epoch"] for name in clients.done}
    twice = sum(max(0, commits[name] - turns) for name, turns in clients.done.items())
    lost = sum(max(0, turns - commits[name]) for name, turns in clients.done.items())
    next(runs, None)
    times = sorted(clients.seconds)
    print(f"turns {clients.results.pop('turns')} of {args.turns} in {seconds:.0f} s, {args.replicas} servers, store + {args.delay * 1e3:.0f} ms")
    print(f"  lost {lost}, twice {twice}, wrong {len(clients.wrong)}")
    print(f"  seconds a turn: median {times[len(times) // 2]:.2f}, 99 % {times[len(times) * 99 // 100]:.2f}, most {times[-1]:.1f}")
    print(f"  events {dict(disturbed)}; requests to the store {dict(store.count)}")
    print(f"  repeated by clients, by status {dict(clients.results)}")
    for one in clients.wrong[:5]:
        print("  wrong:", one)
    sys.exit(bool(lost or twice or clients.wrong or len(clients.done) < args.sessions))


if __name__ == "__main__":
    main()
