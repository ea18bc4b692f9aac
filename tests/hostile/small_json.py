"""JSON bodies of 16 MB that only have values of two bytes, which take many times that when parsed."""

import http.client
import threading

FLAGS = ["--ttft-ms", "0", "--http", "127.0.0.1:0"]
PORT_EVENT = "serving_http"
MODEL = "chat"
SHORT = {"requests": 2, "megabytes": 16}
FULL = {"requests": 16, "megabytes": 16}
MOST_GROWTH = 512e6  # --request-memory twice: received, and parsed
LISTS = [("/v1/chat/completions", "messages", "{}"), ("/v1/completions", "prompt", "[]"),
         ("/v1/completions", "prompt", '""'), ("/v1/chat/completions", "messages", '{"a":{}}')]


def attack(address, requests, megabytes):
    size = (megabytes << 20) - 1000
    answers = set()

    def ask(path, body):
        connection = http.client.HTTPConnection(address)
        connection.request("POST", path, body, {"content-type": "application/json"})
        answers.add(connection.getresponse().status)
        connection.close()

    for path, field, value in LISTS:
        body = ('{"%s": [%s]}' % (field, ",".join([value] * (size // (len(value) + 1) - 9)))).encode()
        threads = [threading.Thread(target=ask, args=(path, body)) for _ in range(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return f"{len(LISTS) * requests} bodies of {size} bytes: {sorted(answers)}"


def check(result, size):
    if result.grown() > MOST_GROWTH:
        yield f"resident memory grew by {result.grown() / 1e6:.0f} MB, wanted under {MOST_GROWTH / 1e6:.0f}"
    yield from result.too_slow()
    yield from result.refusals()
