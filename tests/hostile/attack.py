"""Attacks a recurve-server on 127.0.0.1 and measures the latency of an honest client and the server's use
of the machine, before, during and after the attack.

    RECURVE_BIN=build/release/bin /usr/bin/python3 tests/hostile/attack.py [NAME...] [--short]

busy_process, which comes first, is the baseline of the attacks after it.

Each attack is a module of this folder with

    FLAGS   of the server; optional: FILES, its limit of open files; MODEL ("chat"); PORT_EVENT, the event of
            the log with the port to attack (default: "serving", gRPC's)
    TENANTS = ("honest", "attacker")   if both have keys; the attacker's is in RECURVE_KEY, and
            LIMITS are those of the keys file
    KEEPS = bytes        of the attack's data that the server may cache, by its plan of memory
    CONSTRAINED = True   a second honest client requests answers with new schemas, one after the other
    STREAMS = True       a second honest client reads longer answers, whose time between tokens is measured, before
            the attack too
    CONTROL = [...]     flags of a server with which the same attack runs first, for comparison
    SHORT, FULL          sizes of the attack: a dict, the arguments of attack()
    attack(address, **size)   returns when it is done; runs in a separate process
    check(result, size)       yields a sentence for each bound that does not hold

The attackers' addresses are 127.0.0.2 to 127.0.0.9, so that limits per address separate them from the
honest client.
"""

import argparse
import concurrent.futures as futures
import contextlib
import dataclasses
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import server as servers  # noqa: E402

ATTACKS = ["busy_process", "cancelled_prompts", "cancelled_streams", "large_chats", "gzip_bomb", "half_sent", "strangers",
           "small_messages", "small_json", "reflection_streams", "connection_flood", "rapid_resets", "endless_headers",
           "control_frames", "bad_headers", "endless_streams", "many_choices", "many_sessions",
           "ten_times", "hostile_schemas", "long_http_prompts", "long_scores",
           "many_streams", "many_prompts", "many_embeddings", "page_flood"]
MOST_SECONDS = 300  # of one attack
MOST_RESIDENT = 1.5  # times the resident memory before, after an attack's memory was freed; KEEPS is added
SECONDS_TO_FREE = 30


@dataclasses.dataclass
class Result:
    before: servers.Latencies
    during: servers.Latencies
    after: servers.Latencies
    constrained: servers.Latencies  # during it, of CONSTRAINED: to the end of the answer
    streamed: servers.Latencies  # during it, of STREAMS: between two tokens, the mean of an answer
    usage_before: dict
    usage_most: dict
    usage_after: dict
    new_client_seconds: float  # of a client that connects after the attack: to its first token
    may_keep: float
    # Ends once the memory was freed, or it took too long: seconds (infinite: too long), and resident bytes.
    freed: futures.Future
    summary: str  # of the attack
    streamed_before: servers.Latencies  # `streamed` with nothing else on the server than the honest clients
    control: "Result | None" = None  # the result of CONTROL

    def grown(self):
        return self.usage_most["resident"] - self.usage_before["resident"]

    def too_slow(self):
        """Yields an error if the honest client waits longer than the server guarantees."""
        if self.during.p99() > 0.5:
            yield f"a first token took {self.during}, wanted under 500 ms"

    def unanswered(self):
        """Yields an error if more than one in twenty of the honest client's requests is not answered."""
        if len(self.during.seconds) < 0.95 * self.during.count:
            yield f"the honest client got {self.during}, wanted 95 % answered"

    def slower_than(self, first_token, per_token):
        """Yields an error if the honest clients wait longer than these seconds, at p99."""
        if self.during.p99() > first_token:
            yield f"a first token took {self.during}, wanted under {1000 * first_token:.0f} ms"
        if self.streamed.p99() > per_token:
            yield f"a token took {self.streamed}, wanted under {1000 * per_token:.0f} ms"

    def slower_than_control(self, times, first_token, per_token):
        """Yields an error if the honest clients wait so many times longer than in the control, and longer than
        these seconds, at p99."""
        for name, mine, control, seconds in (("first token", self.during, self.control.during, first_token),
                                             ("token", self.streamed, self.control.streamed, per_token)):
            if mine.p99() > max(times * control.p99(), seconds):
                yield f"a {name} took {mine}, wanted at most {times} times {control}"

    def not_freed(self):
        """Yields an error if the memory of the attack is not freed."""
        seconds, resident = self.freed.result()
        if seconds == float("inf"):
            yield (f"{resident / 1e6:.0f} MB are resident {SECONDS_TO_FREE} s after, wanted "
                   f"at most {self.may_keep / 1e6:.0f}")

    def refusals(self):
        """Yields an error if the honest client gets one."""
        if self.during.errors:
            yield f"the honest client was refused: {self.during}"


def run(name, short, stubs, afterwards):
    """Runs one attack with a new server. The executor waits for the memory to be freed and ends the server."""
    module = importlib.import_module(name)
    if not hasattr(module, "CONTROL"):
        return run_with(module.FLAGS, name, short, stubs, afterwards)
    control = run_with(module.CONTROL, name, short, stubs, afterwards)
    control.freed.result()
    result = run_with(module.FLAGS, name, short, stubs, afterwards)
    return dataclasses.replace(result, control=control)


def run_with(flags, name, short, stubs, afterwards):
    module = importlib.import_module(name)
    with contextlib.ExitStack() as ends:
        server = ends.enter_context(servers.Server(
            flags, getattr(module, "FILES", None), getattr(module, "MODEL", servers.MODEL),
            getattr(module, "TENANTS", ()), getattr(module, "LIMITS", None)))
        honest, attackers = server.keys.get("honest"), server.keys.get("attacker")
        client = servers.HonestClient(server.address, honest)
        quiet = threading.Event()
        with futures.ThreadPoolExecutor() as threads:
            streams = getattr(module, "STREAMS", False)
            alone = threads.submit(ask_by, "read_answer", streams, server.address, honest, quiet)
            before = client.ask_for((4 if streams else 0.3) if short else 5)
            quiet.set()
        usage_before = server.usage()
        address = server.address_of(getattr(module, "PORT_EVENT", "serving"))
        attacker = subprocess.Popen(
            [sys.executable, __file__, "--attacker", name, "--address", address,
             "--stubs", stubs] + (["--short"] if short else []),
            stdout=subprocess.PIPE, text=True, env={**os.environ, "RECURVE_KEY": attackers or ""})
        ended, output = threading.Event(), []

        def wait():
            try:
                output.append(attacker.communicate(timeout=MOST_SECONDS)[0].strip())
            finally:
                attacker.kill()
                ended.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        with servers.Watch(server) as watch, futures.ThreadPoolExecutor() as threads:
            constrained, streamed = (
                threads.submit(ask_by, method, getattr(module, flag, False), server.address, honest, ended)
                for method, flag in (("ask_of_new_schema", "CONSTRAINED"), ("read_answer", "STREAMS")))
            during = client.ask_for(until=ended)
        waiting.join()
        began = time.monotonic()
        fresh = servers.HonestClient(server.address, honest)
        answered = fresh.ask_for(0)
        new_client = time.monotonic() - began if answered.seconds else float("inf")
        after = client.ask_for(0.3 if short else 5)
        usage_after = server.usage()
        may_keep = MOST_RESIDENT * usage_before["resident"] + getattr(module, "KEEPS", 0)
        if attacker.returncode != 0:
            raise RuntimeError(f"{name}: the attacker failed")
        freed = afterwards.submit(wait_for_memory, server, may_keep, (fresh, client), ends.pop_all())
    return Result(before, during, after, constrained.result(), streamed.result(), usage_before, watch.most, usage_after, new_client,
                  may_keep, freed, "".join(output), alone.result())


def ask_by(method, wanted, address, key, ended):
    """The latencies of another honest client that uses this method; none unless wanted."""
    if not wanted:
        return servers.Latencies()
    client = servers.HonestClient(address, key)
    try:
        return client.ask_for(until=ended, ask=getattr(client, method))
    finally:
        client.close()


def wait_for_memory(server, may_keep, clients, ends):
    """Result.freed, while the clients stay connected; then ends all."""
    began = time.monotonic()
    with ends:
        while True:
            resident, seconds = server.usage()["resident"], time.monotonic() - began
            if resident <= may_keep or seconds > SECONDS_TO_FREE:
                break
            time.sleep(0.05)
        for client in clients:
            client.close()
    return seconds if resident <= may_keep else float("inf"), resident


def size_of(module, short):
    return module.SHORT if short else module.FULL


def problems(name, result, short):
    module = importlib.import_module(name)
    return list(module.check(result, size_of(module, short)))


def report(name, result, short):
    def usage(u):
        return f"{u['resident'] / 1e6:.0f} MB, {u['threads']} threads, {u['files']} files"

    size = size_of(importlib.import_module(name), short)
    print(f"{name} {size}: {result.summary}")
    print(f"  first token, p99   before {result.before}; during {result.during}; after {result.after}")
    print(f"  median and p99     before {result.before.where()}; during {result.during.where()}")
    if result.constrained.count:
        print(f"  whole, of a new schema, p99 {result.constrained}")
    if result.streamed.count:
        print(f"  between tokens, p99 before {result.streamed_before}; during {result.streamed}")
    if result.control:
        print(f"  the control        between tokens {result.control.streamed}; first token {result.control.during.where()}")
    print(f"  a new client after {result.new_client_seconds:.2f} s")
    print(f"  server             before {usage(result.usage_before)}; at most "
          f"{usage(result.usage_most)}; after {usage(result.usage_after)}")


def report_memory(name, result):
    seconds, resident = result.freed.result()
    print(f"{name}: {resident / 1e6:.0f} MB are resident after {seconds:.1f} s more")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=ATTACKS)
    parser.add_argument("--short", action="store_true", help="smaller sizes, which take seconds")
    parser.add_argument("--attacker", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--stubs", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attacker:
        sys.path.insert(0, arguments.stubs)
        module = importlib.import_module(arguments.attacker)
        print(module.attack(arguments.address, **size_of(module, arguments.short)) or "")
        return 0
    found, busy = [], None
    with tempfile.TemporaryDirectory(prefix="recurve-stubs-") as stubs, futures.ThreadPoolExecutor() as afterwards:
        servers.generate_stubs(stubs)
        for name in arguments.names:
            result = run(name, arguments.short, stubs, afterwards)
            report(name, result, arguments.short)
            report_memory(name, result)  # waits, so that nothing else runs during the next attack
            busy = result.during.p99() if name == "busy_process" else busy
            if busy is not None:
                print(f"  first token, p99   {result.during.p99() / busy:.1f} x that with a busy process")
            for problem in [*problems(name, result, arguments.short), *result.not_freed()]:
                print(f"  FAILED: {problem}")
                found.append(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
