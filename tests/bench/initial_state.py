"""Time to the first token of requests that start from an initial state of many tokens, and from an empty state.

    tests/bench/initial_state.py CONFIG [--tokens 20000] [--bin build/release/bin]

Random weights. A session absorbs the tokens and is exported; a second server has it as an initial state. Requests
with the same short prompt and one token each are sent one by one, with and without the state in turn, over one
connection. The state has no pending token, so that both absorb the prompt alone. Prints the medians,
and the least of each.
"""

import argparse
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = list(range(5, 13))


class Server:
    def __init__(self, options, *flags):
        command = [options.bin / "recurve-server", "--model", options.config, "--random-weights", "--slots", "4"]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--prefix-memory", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            found = re.search(r"event=serving_http .*port=(\d+)", line)
            if found:
                self.connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))
                return
        raise SystemExit("the server ended before it served")

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.process.terminate()
        self.process.communicate()

    def call(self, method, path, body=None):
        headers = {"content-type": "application/json"} if body is not None else {}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self.connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise SystemExit(f"{path}: {data.decode()}")
        return data

    def complete(self, prompt, **fields):
        """-> seconds."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        began = time.perf_counter()
        self.call("POST", "/v1/completions", body)
        return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = pathlib.Path(folder) / "state"
        with Server(options) as server:
            server.call("POST", "/v1/sessions", {"session": "long"})
            absorbed = server.complete([7 + i % 1000 for i in range(options.tokens)], session="long", max_tokens=0)
            state.write_bytes(server.call("GET", "/v1/sessions/long/state"))
        with Server(options, "--initial-state", f"long={state}") as server:
            times = {"": [], "long": []}
            for _ in range(options.requests):
                for name, seconds in times.items():
                    seconds.append(server.complete(PROMPT, **({"initial_state": name} if name else {})))
        empty, long = (1e3 * statistics.median(times[name]) for name in ("", "long"))
        least, least_long = (1e3 * min(times[name]) for name in ("", "long"))
        print(
            f"{options.config.stem}: {options.tokens} tokens absorbed in {absorbed:.1f} s, state of {state.stat().st_size / 1e6:.1f} MB; "
            f"first token from it {long:.2f} ms, from an empty state {empty:.2f} ms: {long - empty:+.2f} ms"
            f" (least {least_long:.2f}, {least:.2f} ms: {least_long - least:+.2f} ms)"
        )


if __name__ == "__main__":
    main()
