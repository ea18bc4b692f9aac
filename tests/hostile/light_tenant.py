"""Measures how a heavy tenant, which offers ten times the server's capacity, affects a light tenant: its time
to first token, by recurve-loadgen with each tenant's key.

    RECURVE_BIN=build/release/bin /usr/bin/python3 tests/hostile/light_tenant.py [--seconds 30]
        [--rate 10] [--limits '{"heavy": {"slots": 8}}'] [--even]

The load generators share the server's cores. With --even the cores are busy during the baseline too: the
heavy tenant offers the same load to a second server, which refuses almost all of it. So both measurements
include the load generator and refusals, and the ratio shows the cost of the answers to the heavy tenant.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import server as servers  # noqa: E402

LIGHT = ("--arrivals", "constant", "--prompt-tokens", "32", "--output-tokens", "8")
HEAVY = ("--prompt-tokens", "32", "--output-tokens", "32")
TIMES = 10  # the server's capacity, offered by the heavy tenant
WANTED = 1.5  # times the light tenant's p99 alone
NOTHING = {"heavy": {"tokens_per_minute": 1}}  # limits of the server that refuses


class Load:
    """A running recurve-loadgen of a tenant."""

    def __init__(self, server, tenant, *flags):
        key = pathlib.Path(server.folder.name) / f"{tenant}.key"
        key.write_text(server.keys[tenant])
        self.process = subprocess.Popen(
            [servers.binary() / "recurve-loadgen", "--server", server.address, "--key-file", key, "--quiet",
             "--json", "-", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def result(self):
        output = self.process.communicate()[0]
        return json.loads(output[output.index("{"):])["trials"][0]


def p99(trial):
    return trial["latency"]["ttft"]["p99_ms"]


def stages(trial):
    """The parts of the time to first token, median and p99: to the request's first step and from there to the
    token, as the server reports; the remainder of the median, for frontend, text and network; and the delays
    of the load generator, which shares the cores."""
    latency, client = trial["latency"], trial["client"]
    parts = {name: latency[name] for name in ("queue", "prefill")}
    rest = latency["ttft"]["p50_ms"] - sum(part["p50_ms"] for part in parts.values())
    timed = [f"{name} {part['p50_ms']:.1f} and {part['p99_ms']:.1f}" for name, part in parts.items()]
    late = [f"{name} {client[name + '_p99_ms']:.1f}" for name in ("send_delay", "handling_delay")]
    return f"{', '.join(timed)}, the rest {rest:.1f} ms; p99 of the generator's {' and '.join(late)} ms"


def answered(trial):
    requests = trial["requests"]
    return f"{requests['measured'] - requests['failed']} of {requests['measured']} answered"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=30, help="of each measurement")
    parser.add_argument("--rate", type=float, default=10, help="requests a second of the light tenant")
    parser.add_argument("--limits", type=json.loads, default={}, help="of the keys file")
    parser.add_argument("--even", action="store_true", help="load the cores during the baseline too")
    arguments = parser.parse_args()
    seconds = arguments.seconds

    def flood(server):
        return Load(server, "heavy", "--rate", TIMES * capacity, *HEAVY, "--warmup", 0,
                    "--duration", seconds + 5, "--cooldown", 1)

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.Server(tenants=("light", "heavy"), limits=arguments.limits))
        capacity = Load(server, "heavy", "--streams", 64, *HEAVY, "--warmup", 2, "--duration", 8,
                        "--cooldown", 1).result()["throughput"]["answers_per_s"]
        if arguments.even:
            refused = flood(stack.enter_context(servers.Server(tenants=("heavy",), limits=NOTHING)))
        alone = Load(server, "light", "--rate", arguments.rate, *LIGHT, "--warmup", 3, "--duration", seconds).result()
        if arguments.even:
            refused.result()
        heavy = flood(server)
        loaded = Load(server, "light", "--rate", arguments.rate, *LIGHT, "--warmup", 3, "--duration", seconds).result()
        others = heavy.result()
    print(f"heavy alone        {capacity:.1f} answers a second; it offers {TIMES * capacity:.0f}: {answered(others)}, "
          f"{others['requests']['errors']}")
    print(f"light, first token p99 {p99(alone):.1f} ms alone, {p99(loaded):.1f} ms with the heavy tenant, "
          f"{p99(loaded) / p99(alone):.2f} x; {answered(loaded)}; p50 {alone['latency']['ttft']['p50_ms']:.1f} "
          f"and {loaded['latency']['ttft']['p50_ms']:.1f} ms")
    for when, trial in (("alone", alone), ("loaded", loaded)):
        print(f"  {when:6} {stages(trial)}")
    return 0 if p99(loaded) <= WANTED * p99(alone) else 1


if __name__ == "__main__":
    sys.exit(main())
