"""Prompts of 15 MB over HTTP, several at a time, repeatedly."""

import http.client
import json
import os
import threading
import time

FLAGS = ["--http", "127.0.0.1:0"]
PORT_EVENT = "serving_http"
TENANTS = ("honest", "attacker")
STREAMS = True
SHORT = {"connections": 4, "megabytes": 15, "seconds": 3}
FULL = {"connections": 4, "megabytes": 15, "seconds": 30}
# On a machine without other work: seconds to a first token, p99, and between two tokens, as of --tpot-ms.
MOST_FIRST_TOKEN, MOST_PER_TOKEN = 0.1, 0.03


def attack(address, connections, megabytes, seconds):
    text = "It was a cold evening, and no fire had been lit in the hall. "
    body = json.dumps({"prompt": text * ((megabytes << 20) // len(text)), "max_tokens": 1})
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['RECURVE_KEY']}"}
    end, codes, lock = time.monotonic() + seconds, {}, threading.Lock()

    def ask():
        while time.monotonic() < end:
            connection = http.client.HTTPConnection(address, timeout=60)
            try:
                connection.request("POST", "/v1/completions", body, headers)
                response = connection.getresponse()
                response.read()
                code = response.status
            except OSError as error:
                code = type(error).__name__
            connection.close()
            with lock:
                codes[code] = codes.get(code, 0) + 1
            if code == 429:
                time.sleep(0.05)

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{connections} connections, prompts of {len(body)} bytes, ended by {codes}"


def check(result, size):
    return bounds(result, size is FULL)


def bounds(result, full):
    yield from result.refusals()
    yield from result.too_slow()
    if full:
        yield from result.slower_than(MOST_FIRST_TOKEN, MOST_PER_TOKEN)
