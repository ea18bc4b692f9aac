"""What routers cost: three servers of the null model, whose steps take 20 ms, behind each router, against one of them without a router.

    tests/server/object_store/run.sh --streams [--seconds 10] [--rounds 3] [--step-ms 20] [--streams-each 16]

Prints tokens a second of three servers as a part of three times one, medians of rounds in turn, and the router's processor time."""

import argparse
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from routers import Envoy, VllmRouter
from stores import MODEL, PROGRAM, runner

TOKENS = 200  # of an answer


class NullServer:
    def __init__(self, slots, step_ms):
        self.process = subprocess.Popen([PROGRAM.parent / "null_server", MODEL, str(slots), str(step_ms)], stdout=subprocess.PIPE, text=True)
        self.ports = tuple(map(int, self.process.stdout.readline().split()))
        self.port = self.ports[1]

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0


def grpc_rate(port, streams, seconds):
    """Tokens a second, by recurve-loadgen."""
    done = subprocess.run(
        [PROGRAM.parent / "recurve-loadgen", "--server", f"127.0.0.1:{port}", "--streams", str(streams), "--prompt-tokens", "4",
         "--output-tokens", str(TOKENS), "--warmup", "2", "--duration", str(seconds), "--cooldown", "0", "--workers", "1", "--quiet",
         "--json", "-"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["trials"][0]["throughput"]["tokens_per_s"]


class HttpStream:
    """Asks for one streamed answer after the other."""

    def __init__(self, port, name):
        body = json.dumps({"prompt": "Once", "max_tokens": TOKENS, "stream": True, "temperature": 0, "ignore_eos": True})
        self.request = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Session-ID: {name}\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.ask()

    def ask(self):
        self.tail = b""
        self.socket.sendall(self.request)

    def read(self):
        """The number of events that came."""
        data = self.socket.recv(1 << 16)
        assert data, "the connection was closed"
        text = self.tail + data
        events = text.count(b"data: {")
        if b"data: [DONE]" in text:
            self.ask()
        else:
            self.tail = text[-11:]  # not long enough for an event
            events -= self.tail.count(b"data: {")
        return events


def http_rate(port, streams, seconds):
    selector = selectors.DefaultSelector()
    for number in range(streams):
        stream = HttpStream(port, f"s{number}")
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    events, begin, end = 0, time.monotonic() + 2, time.monotonic() + 2 + seconds
    while (now := time.monotonic()) < end:
        count = sum(key.data.read() for key, _ in selector.select(0.1))
        events += count if now >= begin else 0
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    return events / seconds


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


ROUTES = (("Envoy", Envoy, "gRPC", grpc_rate, 0), ("Envoy", Envoy, "HTTP", http_rate, 1), ("vLLM Router", VllmRouter, "HTTP", http_rate, 1))


def measure(args, folder):
    """{(router, protocol): (tokens/s of one, of three, their part, processors of the router)}, medians."""
    runs = runner(folder)
    run = next(runs)
    servers = [NullServer(3 * args.streams_each, args.step_ms) for _ in range(3)]
    try:
        return measured(args, run, servers, folder)
    finally:
        for server in servers:
            server.stop()
        next(runs, None)


def measured(args, run, servers, folder):
    rounds = {}
    for _ in range(args.rounds):
        for name, router, protocol, rate, at in ROUTES:
            one = rate(servers[0].ports[at], args.streams_each, args.seconds)
            front = router(run, servers, folder)
            before, began = processor_seconds(front.process.pid), time.monotonic()
            three = rate(front.port, 3 * args.streams_each, args.seconds)
            processors = (processor_seconds(front.process.pid) - before) / (time.monotonic() - began)
            front.kill()
            rounds.setdefault((name, protocol), []).append((one, three, three / (3 * one), processors))
    return {route: tuple(map(statistics.median, zip(*figures))) for route, figures in rounds.items()}


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("seconds", 10), ("rounds", 3), ("step-ms", 20.0), ("streams-each", 16)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args, pathlib.Path(folder))
    for (name, protocol), (one, three, part, processors) in figures.items():
        print(f"{name}, {protocol}: one server {one:.0f} tokens/s, three behind it {three:.0f}, {100 * part:.1f} % of three times one "
              f"(>= 95); the router used {processors:.3f} processors, {1e6 * processors / three:.0f} us a token")
    sys.exit(any(part < 0.95 for _, _, part, _ in figures.values()))


def test_three_servers_behind_each_router_stream(tmp_path):
    """The short form, with steps so long that a machine under load can follow: all three serve at once."""
    figures = measure(argparse.Namespace(seconds=3, rounds=1, step_ms=100.0, streams_each=4), tmp_path)
    for route, (one, three, part, processors) in figures.items():
        assert one > 10 and three > 1.5 * one and processors < 2, (route, one, three)


if __name__ == "__main__":
    main()
