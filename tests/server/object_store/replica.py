"""A server that shares an object store, asked over HTTP, and a proxy before its store that loses answers."""

import http.client
import json
import select
import socket
import threading
import time

import boto3
from stores import free_ports, KEY, KEYS, MODEL, PROGRAM, SECRET

PROMPTS = ["Call me Ishmael.", " The sea", " and the ship", " went", " down to", " the bottom"]
LONG = " ".join(f"{number} men went down to the sea in ship {number * 7919 % 1000}." for number in range(60))
SERVER = PROGRAM.parent / "recurve-server"


class Answer:
    def __init__(self, status, body):
        self.status = status
        self.body = body
        self.message = body.get("error", {}).get("message", "")

    @property
    def text(self):
        assert self.status == 200, self.message
        return self.body["choices"][0]["text"]


class Replica:
    """A server, asked over HTTP."""

    def __init__(self, run, store=None, prefix="replicas", flags=(), model=MODEL, timeout=120, key=None, ports=(), **environment):
        self.ports = port, self.port = ports or free_ports(2)  # of gRPC and HTTP
        self.address, self.timeout, self.key = f"127.0.0.1:{port}", timeout, key
        if store:
            flags = ["--state-store", f"s3://bucket/{prefix}", "--state-endpoint", store, *flags]
        url = f"http://127.0.0.1:{self.port}/health"
        self.process = run([SERVER, "--model", model, "--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{self.port}",
                            "--threads", "1", *flags], url, **{**KEYS, **environment})
        end = time.monotonic() + 60
        while self.ask("POST", "/tokenize", {"prompt": "x"}).status != 200:
            assert time.monotonic() < end
            time.sleep(0.05)

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            if isinstance(body, dict):
                headers, body = {"Content-Type": "application/json", **headers}, json.dumps(body)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            return Answer(answer.status, json.loads(text) if is_json else {"bytes": text})
        finally:
            connection.close()

    def open(self, name, durability="remote", **fields):
        return self.ask("POST", "/v1/sessions", {"session": name, "durability": durability, **fields})

    def get(self, name):
        return self.ask("GET", f"/v1/sessions/{name}")

    def turn(self, name, prompt, request=None, tokens=12, **fields):
        headers = {"Idempotency_Key": request} if request else {}
        return self.ask("POST", "/v1/completions", {"session": name, "prompt": prompt, "max_tokens": tokens, "seed": 7, **fields},
                        **headers)

    def kill(self):
        self.process.kill()
        self.process.wait()


def expected(run, prompts=PROMPTS, **of):
    """What one server alone answers."""
    alone = Replica(run, **of)
    alone.open("s", "none")
    texts = [alone.turn("s", prompt).text for prompt in prompts]
    alone.kill()
    return texts


def expected_after(run, turns, prompt):
    alone = Replica(run)
    alone.open("s", "none")
    for text, tokens in turns:
        alone.turn("s", text, tokens=tokens)
    text = alone.turn("s", prompt).text
    alone.kill()
    return text


def client(url):
    return boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")


def objects(url, prefix):
    s3 = client(url)
    listed = s3.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return {one["Key"][len(prefix):]: s3.get_object(Bucket="bucket", Key=one["Key"])["Body"].read() for one in listed}


def metric(server, name, label=""):
    """The sum of the series of that name with that label."""
    text = server.ask("GET", "/metrics").body["bytes"].decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines()
               if line.partition("{")[0].partition(" ")[0] == name and label in line)


class Proxy:
    """Passes connections to a store. Once armed, it carries out the next request that begins so, and loses its answer; held, it
    passes nothing."""

    def __init__(self, url):
        self.port = int(url.rpartition(":")[2])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.armed, self.fired = None, 0
        threading.Thread(target=self.serve, daemon=True).start()

    def arm(self, begins, times=1):
        with self.lock:
            self.armed, self.times, self.fired = begins, times, 0

    def takes(self, head):
        with self.lock:
            if self.armed is None or not self.armed(head) or self.fired == self.times:
                return False
            self.fired += 1
            return True

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(connection,), daemon=True).start()

    def forward(self, connection):
        loses = False
        with connection, socket.create_connection(("127.0.0.1", self.port)) as store:
            try:
                while True:
                    for ready in select.select([connection, store], [], [])[0]:
                        data = ready.recv(1 << 20)
                        if not data or (ready is store and loses):
                            return
                        if ready is connection and data[:4] in (b"GET ", b"PUT ", b"DELE"):
                            loses = self.takes(data.partition(b"\r\n")[0].decode())
                        (store if ready is connection else connection).sendall(data)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def of_head(method):
    return lambda line: line.startswith(method) and "/head " in line
