#!/usr/bin/env python3
"""Two models in one process, against two processes that run next to each other, in turns.

    RECURVE_BIN=build/release/bin tests/bench/two_models.py [--models A B] [--streams N] [--seconds S] [--turns T]
    RECURVE_BIN=build/release/bin tests/bench/two_models.py --load [...]

Prints, for each model, the tokens a second of each turn in both ways, the median of the ratios, and the processor
time of a token. Wanted are 95 % for each model. With --load, the first model serves alone, while the second one is
loaded and unloaded all the time, in turns with the first model alone, and with it next to a process of idle priority
that only counts: prints the 99th percentile of the time between two tokens of the first model in each way, and how
often the second one was loaded. Wanted is a ratio of at most 1.2 to the model alone; what the counting process costs
is the machine's doing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("RECURVE_BIN", ROOT / "build/release/bin"))


@contextlib.contextmanager
def server(flags):
    """Its address and process."""
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(
            [BIN / "recurve-server", "--listen", "127.0.0.1:0", *flags], stderr=log
        )
        try:
            while not (found := re.search(r"event=serving .*port=(\d+)", pathlib.Path(log.name).read_text())):
                if process.poll() is not None:
                    sys.exit(pathlib.Path(log.name).read_text())
                time.sleep(0.05)
            yield f"127.0.0.1:{found[1]}", process
        finally:
            process.terminate()
            process.wait()


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loads(targets, options):
    """The tokens of both models' streams in the measured time, which is the same for both."""
    running = []
    for address, model in targets:
        running.append(
            subprocess.Popen(
                loadgen(address, model, options),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    reports = [json.loads(process.communicate()[0]) for process in running]
    return [report["trials"][0]["throughput"]["tokens_per_s"] for report in reports]


def load_and_unload(address, until):
    """How often, and the median duration of a load."""
    seconds = []
    while time.monotonic() < until:
        began = time.monotonic()
        # The start of a client takes as much processor time as a small load, which is not the server's.
        change = ["chrt", "--idle", "0", BIN / "recurve", "--server", address, "models"]
        subprocess.run([*change, "load", "b", "--set", "session_memory=64MB"], check=True)
        seconds.append(time.monotonic() - began)
        subprocess.run([*change, "unload", "b"], check=True)
    return len(seconds), statistics.median(seconds) if seconds else 0


@contextlib.contextmanager
def counting():
    """A process of idle priority that only counts."""
    process = subprocess.Popen(["chrt", "--idle", "0", "sh", "-c", "i=0; while :; do i=$((i + 1)); done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def load_turn(options, root, neighbour):
    """p99 between tokens in ms, and what load_and_unload() returns. neighbour: "nothing", "counting" or "loads"."""
    flags = [f"--model=a={options.models[0]}", f"--model-root={root}", "--http", "none", "--ttft-ms", "0"]
    flags += ["--slots", str(options.streams), "--threads", str(options.threads)]
    flags += ["--session-memory", "256MB", "--prefix-memory", "64MB"]
    with server(flags) as (address, _), counting() if neighbour == "counting" else contextlib.nullcontext():
        running = subprocess.Popen(loadgen(address, "a", options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(1)  # of the warm-up
        changes = load_and_unload(address, time.monotonic() + options.seconds) if neighbour == "loads" else (0, 0)
        report = json.loads(running.communicate()[0])
    return report["trials"][0]["latency"]["inter_token"]["p99_ms"], changes


def measure_loads(options):
    found = {"nothing": [], "counting": [], "loads": []}
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(options.models[1], pathlib.Path(root) / "b")  # with what links lead to
        for number in range(options.turns):
            for neighbour in reversed(found) if number % 2 else found:
                found[neighbour].append(load_turn(options, root, neighbour))
    p99 = {neighbour: [round(one, 3) for one, _ in turns] for neighbour, turns in found.items()}
    for neighbour, ones in p99.items():
        ratio = statistics.median(one / alone for one, alone in zip(ones, p99["nothing"]))
        print(f"p99 between tokens next to {neighbour}: {ones} ms, ratio {ratio:.3f}")
    print(f"loads a turn and their median seconds: {[(n, round(s, 3)) for _, (n, s) in found['loads']]}")


def loadgen(address, model, options):
    return (
        [BIN / "recurve-loadgen", "--server", address, "--model", model, "--json", "-"]
        + ["--streams", str(options.streams), "--prompt-tokens", "32", "--output-tokens", "128"]
        + ["--warmup", "1", "--duration", str(options.seconds)]
    )


def turn(options, together):
    models = [[f"--model={name}={path}"] for name, path in zip("ab", options.models)]
    common = ["--http", "none", "--slots", str(options.streams), "--ttft-ms", "0"]
    common += ["--threads", str(options.threads)]
    with contextlib.ExitStack() as stack:
        sets = [models[0] + models[1]] if together else models
        servers = [stack.enter_context(server(common + flags)) for flags in sets]
        before = sum(processor_seconds(process) for _, process in servers)
        rates = loads([(servers[0][0], "a"), (servers[-1][0], "b")], options)
        spent = sum(processor_seconds(process) for _, process in servers) - before
    return rates, spent / sum(rates) / options.seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    demo = ROOT / "weights_tools/demo"
    parser.add_argument("--models", nargs=2, default=[demo / "xlstm-books", demo / "mamba2-books"])
    parser.add_argument("--streams", type=int, default=8, help="of each model")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of each server; 0: as many as cores")
    parser.add_argument("--load", action="store_true", help="load the second model while the first one serves")
    options = parser.parse_args()
    if options.load:
        return measure_loads(options)
    alone, together, cost = [], [], {True: [], False: []}
    for number in range(options.turns):
        for both in (True, False) if number % 2 else (False, True):
            rates, seconds = turn(options, both)
            (together if both else alone).append(rates)
            cost[both].append(seconds)
    for index, path in enumerate(options.models):
        ratios = [one[index] / other[index] for one, other in zip(together, alone)]
        print(
            f"{pathlib.Path(path).name}: own process {[round(r[index]) for r in alone]} tok/s, "
            f"one process {[round(r[index]) for r in together]}; ratio {statistics.median(ratios):.3f}"
        )
    sums = [sum(one) / sum(other) for one, other in zip(together, alone)]
    print(f"both: ratio {statistics.median(sums):.3f}")
    print(
        "processor time of a token, with warm-up: own processes "
        f"{statistics.median(cost[False]) * 1e6:.1f} us, one process {statistics.median(cost[True]) * 1e6:.1f} us"
    )


if __name__ == "__main__":
    main()
