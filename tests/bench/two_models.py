#!/usr/bin/env python3
"""Two models in one process, against two processes that run next to each other, in turns.

    RECURVE_BIN=build/release/bin tests/bench/two_models.py [--models A B] [--streams N] [--seconds S] [--turns T]

Prints, for each model, the tokens a second of each turn in both ways, the median of the ratios, and the processor
time of a token. The issue's target is 95 % for each model.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
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
                [BIN / "recurve-loadgen", "--server", address, "--model", model, "--json", "-"]
                + ["--streams", str(options.streams), "--prompt-tokens", "32", "--output-tokens", "128"]
                + ["--warmup", "1", "--duration", str(options.seconds)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    reports = [json.loads(process.communicate()[0]) for process in running]
    return [report["trials"][0]["throughput"]["tokens_per_s"] for report in reports]


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
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
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
