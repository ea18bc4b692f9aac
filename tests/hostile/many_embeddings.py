"""Requests of small bodies for very many embeddings, repeatedly, whose client leaves after a moment or reads
nothing, on a server without keys. The honest client has the same address."""

import http.client
import json
import time

FLAGS = ["--slots", "16", "--http", "127.0.0.1:0"]
PORT_EVENT = "serving_http"
SHORT = {"inputs": (2048, 500), "seconds": 2}
FULL = {"inputs": (2048, 500), "seconds": 30}


def attack(address, inputs, seconds):
    end, codes, held = time.monotonic() + seconds, {}, []
    while time.monotonic() < end:
        for count in inputs:
            body = json.dumps({"input": ["a"] * count, "pooling": "mean"}, separators=(",", ":"))
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            held.append(connection)
            if len(held) < 8:
                continue
            oldest = held.pop(0)
            oldest.sock.settimeout(0.2)
            try:
                status = oldest.getresponse().status
            except TimeoutError:
                status = "left"
            codes[status] = codes.get(status, 0) + 1
            oldest.close()
    for connection in held:
        connection.close()
    return f"requests of {inputs} embeddings: {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
