"""Requests of 1 KiB over HTTP with very many prompts and the largest number of choices, repeatedly, on a
server without keys. The honest client has the same address."""

import http.client
import json
import time

FLAGS = ["--slots", "16", "--http", "127.0.0.1:0"]
PORT_EVENT = "serving_http"
SHORT = {"prompts": (256, 200), "seconds": 2}
FULL = {"prompts": (256, 200), "seconds": 30}


def attack(address, prompts, seconds):
    end, codes = time.monotonic() + seconds, {}
    while time.monotonic() < end:
        for count in prompts:
            body = json.dumps({"prompt": ["a"] * count, "n": 16, "max_tokens": 100, "ignore_eos": True,
                               "stream": True}, separators=(",", ":"))
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            codes[response.status] = codes.get(response.status, 0) + 1
            while time.monotonic() < end and response.read(4096):
                pass
            connection.close()
    return f"requests of {prompts} prompts with 16 choices each: {codes}"


def check(result, size):
    yield from result.unanswered()
    yield from result.too_slow()
