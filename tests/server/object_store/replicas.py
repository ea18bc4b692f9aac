"""Servers that share an object store: sessions of durability remote."""

import http.client
import json
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time

import boto3
from stores import _run, _seaweedfs, free_ports, KEY, KEYS, MODEL, PROGRAM, SECRET, TOOLS  # noqa: F401

PROMPTS = ["Call me Ishmael.", " The sea", " and the ship", " went", " down to", " the bottom"]
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

    def __init__(self, run, store=None, prefix="replicas", flags=(), model=MODEL, timeout=120, key=None):
        port, self.port = free_ports(2)
        self.address, self.timeout, self.key = f"127.0.0.1:{port}", timeout, key
        if store:
            flags = ["--state-store", f"s3://bucket/{prefix}", "--state-endpoint", store, *flags]
        url = f"http://127.0.0.1:{self.port}/health"
        self.process = run([SERVER, "--model", model, "--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{self.port}",
                            "--threads", "1", *flags], url, **KEYS)
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


def client(url):
    return boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")


def objects(url, prefix):
    s3 = client(url)
    listed = s3.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return {one["Key"][len(prefix):]: s3.get_object(Bucket="bucket", Key=one["Key"])["Body"].read() for one in listed}


def test_a_session_moves_between_replicas_to_the_same_text(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs), Replica(run, seaweedfs)
    opened = a.open("s")
    assert opened.status == 201 and opened.body["durability"] == "remote" and opened.body["epoch"] == 0
    assert opened.body["commit"] == {"owner_epoch": 1, "number": 1, "position": 0}
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    assert b.get("s").body["epoch"] == 1
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    lost = a.turn("s", "lost")  # it does not know yet
    assert lost.status == 409 and "belongs to" in lost.message and "since epoch 2" in lost.message, lost.message
    assert a.turn("s", PROMPTS[2]).text == texts[2]
    assert a.turn("s", PROMPTS[3]).text == texts[3]
    info = a.get("s").body
    assert info["epoch"] == 4 and info["commit"]["owner_epoch"] == 3 and info["durability"] == "remote"
    assert a.ask("GET", "/v1/sessions").body["data"][0]["commit"] == info["commit"]
    for server in (a, b):
        assert "exists" in server.open("s").message
    assert b.ask("DELETE", "/v1/sessions/s").body["deleted"]
    assert b.get("s").status == 404
    assert a.turn("s", "gone").status == 409  # with its copy
    assert a.turn("s", "gone").status == 404
    assert a.get("s").status == 404
    assert a.open("s").status == 201
    assert a.turn("s", PROMPTS[0]).text == texts[0]


def test_a_repeated_request_gets_the_recorded_answer_on_any_replica(run, seaweedfs):
    a, b = Replica(run, seaweedfs, "repeated"), Replica(run, seaweedfs, "repeated")
    a.open("s")
    first = a.turn("s", PROMPTS[0], "r1")
    before = a.get("s").body
    for server in (a, b):
        again = server.turn("s", PROMPTS[0], "r1")
        assert again.text == first.text and again.body["usage"] == first.body["usage"]
        assert again.body["choices"] == first.body["choices"]
        other = server.turn("s", "Another", "r1")
        assert other.status == 409 and "other contents" in other.message, other.message
        assert server.get("s").body["commit"] == before["commit"]  # it is not taken
    assert b.turn("s", PROMPTS[1], "r2").text == expected(run)[1]
    stopped = b.turn("s", PROMPTS[2], "r3", tokens=60, stop=[" the"])
    assert a.turn("s", PROMPTS[2], "r3", tokens=60, stop=[" the"]).status == 409  # a has its copy of before
    again = a.turn("s", PROMPTS[2], "r3", tokens=60, stop=[" the"])
    assert again.body["choices"] == stopped.body["choices"] and again.body["usage"] == stopped.body["usage"]


def test_what_is_not_there_is_refused_by_name(run, seaweedfs):
    a, b = Replica(run, seaweedfs, "refused"), Replica(run, seaweedfs, "refused")
    alone = Replica(run)
    assert "--state-store" in alone.open("s").message
    assert "ttl_seconds" in a.open("s", ttl_seconds=5).message
    assert "rewind_tokens" in a.open("s", rewind_tokens=5).message
    a.open("s")
    a.turn("s", PROMPTS[0])
    b.open("local", "none")
    b.turn("local", PROMPTS[0])
    for server in (a, b):  # with a copy and without one
        for path, body in (("marks", {"mark": "m"}), ("rewind", {"position": 1}), ("rewind", {"mark": "m"}),
                           ("fork", {"session": "t"}), ("fork", {"session": "t", "durability": "remote"})):
            answer = server.ask("POST", f"/v1/sessions/s/{path}", body)
            assert answer.status == 501 and "import the state" in answer.message, (path, answer.message)
        assert server.ask("DELETE", "/v1/sessions/s/marks/m").status == 501
    assert a.ask("POST", "/v1/sessions/s/fork", {"session": "t", "durability": "none"}).status == 201
    assert a.turn("t", PROMPTS[1]).text == expected(run)[1]
    assert b.ask("GET", "/v1/sessions/none").status == 404
    assert b.ask("POST", "/v1/sessions/none/marks", {"mark": "m"}).status == 404
    # Sessions of a server alone have all they had.
    assert b.ask("POST", "/v1/sessions/local/marks", {"mark": "m"}).status == 200
    assert b.turn("local", PROMPTS[1]).text == expected(run)[1]
    assert b.ask("POST", "/v1/sessions/local/rewind", {"mark": "m"}).status == 200


def test_states_go_in_and_out(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs, "moved"), Replica(run, seaweedfs, "moved")
    a.open("local", "none")
    a.turn("local", PROMPTS[0])
    state = a.ask("GET", "/v1/sessions/local/state").body["bytes"]
    binary = {"Content_Type": "application/octet-stream"}
    made = a.ask("PUT", "/v1/sessions/s/state?durability=remote", state, **binary)
    assert made.status == 201 and made.body["durability"] == "remote", made.message
    assert b.ask("GET", "/v1/sessions/s/state").body["bytes"] == state
    assert b.get("s").body["commit"]["owner_epoch"] == 1  # it is not taken
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    assert b.ask("PUT", "/v1/sessions/s/state?durability=remote", state, **binary).status == 409


def test_states_are_sealed(run, seaweedfs, tmp_path):
    keys = [tmp_path / "keys", tmp_path / "others"]
    for file in keys:
        subprocess.run([PROGRAM.parent / "recurve", "keys", "state", "new", "--file", file], check=True, capture_output=True)
    sealed = ["--state-keys", str(keys[0])]
    texts = expected(run)
    a, b = [Replica(run, seaweedfs, "sealed", sealed) for _ in range(2)]
    a.open("s")
    assert a.turn("s", PROMPTS[0], "r1").text == texts[0]
    ids = a.ask("POST", "/tokenize", {"prompt": texts[0]}).body["tokens"]
    for key, text in objects(seaweedfs, "sealed/").items():
        assert b"RCRVSTAT" not in text and json.dumps(ids).encode()[1:-1] not in text.replace(b",", b", "), key
        assert not key.startswith("blobs/") or text.startswith(b"RCRVSEA1"), key
    assert b.turn("s", PROMPTS[0], "r1").text == texts[0]
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    without, others = Replica(run, seaweedfs, "sealed"), Replica(run, seaweedfs, "sealed", ["--state-keys", str(keys[1])])
    for server, why in ((without, "--state-keys"), (others, "needs the operator's key")):
        refused = server.turn("s", PROMPTS[2])
        assert refused.status == 409 and why in refused.message, refused.message
        assert server.ask("GET", "/v1/sessions/s/state").status == 409
    assert "needs the operator's key" in others.open("other").message
    without.open("plain")
    without.turn("plain", PROMPTS[0])
    refused = a.turn("plain", PROMPTS[1])
    assert refused.status == 409 and "is not sealed" in refused.message, refused.message
    assert b.turn("s", PROMPTS[2]).text == texts[2]  # none of them took it

    # A new operator's key: the tenant's key is wrapped again, states are as they were.
    wrapped = objects(seaweedfs, "sealed/keys/")
    keys[0].write_text("".join("%064x\n" % random.getrandbits(256) for _ in range(1)) + keys[0].read_text())
    rotated = Replica(run, seaweedfs, "sealed", sealed)
    assert rotated.turn("s", PROMPTS[3]).text == texts[3]
    again = objects(seaweedfs, "sealed/keys/")
    assert again != wrapped and again.keys() == wrapped.keys() and len(again) == 1
    keys[0].write_text(keys[0].read_text().splitlines(keepends=True)[0])
    assert Replica(run, seaweedfs, "sealed", sealed).turn("s", PROMPTS[4]).text == texts[4]


def test_a_replica_of_another_model_is_refused_by_name(run, seaweedfs):
    a, b = Replica(run, seaweedfs, "models"), Replica(run, seaweedfs, "models", model=MODEL.parent / "gla-books")
    a.open("s")
    texts = expected(run)
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    refused = b.turn("s", PROMPTS[1])
    assert refused.status == 409 and "model" in refused.message, refused.message
    assert a.turn("s", PROMPTS[1]).text == texts[1]  # b did not take it


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


def test_answers_of_the_store_that_are_lost(run, seaweedfs):
    texts = expected(run)
    proxy = Proxy(seaweedfs)
    a, b = Replica(run, proxy.url, "lost"), Replica(run, seaweedfs, "lost")
    proxy.arm(of_head("PUT"))
    assert a.open("s").status == 201 and proxy.fired == 1
    proxy.arm(of_head("PUT"))
    assert a.turn("s", PROMPTS[0], "r0").text == texts[0] and proxy.fired == 1
    assert b.turn("s", PROMPTS[1], "r1").text == texts[1]
    # The commit is done, and nothing that the server asks is answered: it says so, and the client repeats its request elsewhere.
    assert a.turn("s", "lost").status == 409
    assert a.turn("s", PROMPTS[2], "r2").text == texts[2]
    proxy.arm(lambda line: "/head " in line, times=1000)
    unknown = a.turn("s", PROMPTS[3], "r3")
    assert unknown.status == 429 and "it is unknown whether" in unknown.message, unknown.message
    assert proxy.fired > 2
    proxy.arm(None)
    assert b.turn("s", "lost").status == 409
    assert b.turn("s", PROMPTS[3], "r3").text == texts[3]
    assert [server.get("s").body["epoch"] for server in (a, b)] == [4, 4]
    assert b.turn("s", PROMPTS[4], "r4").text == texts[4]
    assert a.turn("s", PROMPTS[4], "r4").text == texts[4]
    assert a.turn("s", PROMPTS[5], "r5").text == texts[5]
    proxy.close()


def test_a_paused_owner_cannot_commit_any_more(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs, "paused"), Replica(run, seaweedfs, "paused")
    a.open("s")
    assert a.turn("s", PROMPTS[0], "r0").text == texts[0]
    answers = []
    asked = threading.Thread(target=lambda: answers.append(a.turn("s", PROMPTS[1], "r1", tokens=400)))
    asked.start()
    while a.ask("GET", "/v1/load").body["requests_running"] == 0 and asked.is_alive():
        pass
    a.process.send_signal(signal.SIGSTOP)
    assert b.turn("s", PROMPTS[1], "r1").text == texts[1]
    a.process.send_signal(signal.SIGCONT)
    asked.join()
    assert answers[0].status == 409 and "belongs to" in answers[0].message, answers[0].message
    assert b.turn("s", PROMPTS[2], "r2").text == texts[2]
    assert b.get("s").body["epoch"] == 3


def test_no_turn_is_lost_or_done_twice_by_kill_9(run, seaweedfs):
    """Clients repeat their requests at another replica, with the same id, until they are answered."""
    chance = random.Random(3)
    sessions, turns = 4, 20
    prompts = [f" {number} and" for number in range(turns)]
    texts = expected(run, prompts)
    replicas = [Replica(run, seaweedfs, "killed") for _ in range(2)]
    for number in range(sessions):
        assert replicas[0].open(f"s{number}").status == 201
    failures, wrong = [], []

    def work(number):
        own = random.Random(number)
        for turn, prompt in enumerate(prompts):
            while True:
                try:
                    answer = own.choice(replicas).turn(f"s{number}", prompt, f"r{number}.{turn}")
                except OSError:
                    failures.append(number)
                    time.sleep(0.05)
                    continue
                if answer.status == 200:
                    break
                assert answer.status in (409, 429, 503), answer.message
                assert answer.status != 409 or "belongs to" in answer.message or "unique" in answer.message, answer.message
            if answer.text != texts[turn]:
                wrong.append((number, turn, answer.text, texts[turn]))
                return

    workers = [threading.Thread(target=work, args=(number,)) for number in range(sessions)]
    for worker in workers:
        worker.start()
    kills = 0
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.3 + chance.random())
        at = chance.randrange(2)
        replicas[at].kill()
        replicas[at] = Replica(run, seaweedfs, "killed")
        kills += 1
    assert not wrong
    assert kills > 1
    for number in range(sessions):
        assert replicas[0].get(f"s{number}").body["epoch"] == turns


def test_a_server_starts_without_its_store(run, seaweedfs):
    port, = free_ports(1)
    a = Replica(run, f"http://127.0.0.1:{port}", "optional", ["--state-store-optional"])
    refused = a.open("s")
    assert refused.status == 429 and "--state-store cannot be used now" in refused.message, refused.message
    assert a.open("s", "none").status == 201 and a.turn("s", PROMPTS[0]).status == 200
    with socket.create_server(("127.0.0.1", port)) as listener:
        proxy = Proxy.__new__(Proxy)
        proxy.port, proxy.listener, proxy.lock, proxy.armed = int(seaweedfs.rpartition(":")[2]), listener, threading.Lock(), None
        threading.Thread(target=proxy.serve, daemon=True).start()
        end = time.monotonic() + 60
        while (opened := a.open("t")).status != 201:
            assert opened.status == 429 and time.monotonic() < end, opened.message
            time.sleep(0.2)
        assert a.turn("t", PROMPTS[0]).status == 200


def test_a_drain_moves_all_sessions_to_the_store(run, seaweedfs, tmp_path):
    texts = expected(run)
    a = Replica(run, seaweedfs, "drained", ["--state-dir", str(tmp_path / "states"), "--drain-to-store"])
    for durability in ("none", "local", "remote"):
        assert a.open(durability, durability).status == 201
        assert a.turn(durability, PROMPTS[0], "r").text == texts[0]
    a.open("empty", "none")
    for number in range(40):
        a.open(f"many{number}", "none")
        assert a.turn(f"many{number}", PROMPTS[0]).text == texts[0]
    a.process.terminate()
    assert a.process.wait() == 0
    b = Replica(run, seaweedfs, "drained")
    for name in ("none", "local", "remote", *(f"many{number}" for number in range(40))):
        assert b.turn(name, PROMPTS[1]).text == texts[1], name
    assert b.turn("empty", PROMPTS[0]).text == texts[0]
    # What was durable in the folder is not there any more: it would be continued twice.
    again = Replica(run, seaweedfs, "drained", ["--state-dir", str(tmp_path / "states")])
    assert again.ask("GET", "/v1/sessions").body["data"] == []
    assert again.turn("local", PROMPTS[2]).text == texts[2]


def test_a_drain_says_what_it_could_not_move(run, seaweedfs, tmp_path):
    proxy = Proxy(seaweedfs)
    a = Replica(run, proxy.url, "late", ["--drain-to-store", "--drain-seconds", "1"])
    a.open("s", "none")
    a.turn("s", PROMPTS[0])
    assert Replica(run, seaweedfs, "late").open("taken").status == 201
    a.open("taken", "none")
    a.turn("taken", PROMPTS[0])
    proxy.arm(lambda line: "/blobs/" in line and line.startswith("PUT"), times=1000)
    a.process.terminate()
    assert a.process.wait() == 0
    log = (tmp_path / "log").read_text()
    assert "event=drained_to_store moved=0 failed=2 late=0" in log
    assert 'name=taken why="session \\"taken\\" exists' in log
    proxy.close()


def test_tenants_do_not_see_each_others_sessions(run, seaweedfs, tmp_path):
    file = tmp_path / "keys"
    keys = [subprocess.run([PROGRAM.parent / "recurve", "keys", "new", "--file", file, "--tenant", tenant], check=True,
                           capture_output=True, text=True).stdout.split()[-1] for tenant in ("alice", "bob")]
    texts = expected(run)
    servers = [Replica(run, seaweedfs, "tenants", ["--keys", str(file)], key=keys[0]) for _ in range(2)]

    def turn(server, key, prompt):
        server.key = key
        return server.turn("s", prompt)

    for server, key in zip(servers, keys):
        server.key = key
        assert server.open("s").status == 201
    assert turn(servers[0], keys[0], PROMPTS[0]).text == texts[0]
    assert turn(servers[0], keys[1], PROMPTS[0]).text == texts[0]
    assert turn(servers[1], keys[0], PROMPTS[1]).text == texts[1]
    servers[1].key = keys[1]
    assert servers[1].ask("DELETE", "/v1/sessions/s").status == 200
    servers[0].key = keys[1]
    assert servers[0].get("s").status == 404
    assert turn(servers[1], keys[0], PROMPTS[2]).text == texts[2]


def test_what_killed_servers_leave_is_collected(run, seaweedfs):
    a = Replica(run, seaweedfs, "collected")
    a.open("s")
    a.turn("s", PROMPTS[0])
    client(seaweedfs).put_object(Bucket="bucket", Key="collected/blobs/t-default/left", Body=b"left")

    def collect(*flags):
        return subprocess.run([PROGRAM.parent / "recurve", "store", "collect", "--state-store", "s3://bucket/collected", "--state-endpoint",
                               seaweedfs, *flags], capture_output=True, text=True, env={**os.environ, **KEYS})

    done = collect("--dry-run")
    assert (done.returncode, done.stdout) == (0, "") and "1 heads, 2 blobs; 0 would go with 0 bytes; 1 without" in done.stderr, done
    assert collect("--grace", "1").returncode == 2
    assert "NoSuchBucket" in collect("--state-store", "s3://none").stderr or collect("--state-store", "s3://none").returncode != 0
    assert a.turn("s", PROMPTS[1]).text == expected(run)[1]


def test_two_replicas_asked_for_one_session_at_once(run, seaweedfs):
    replicas = [Replica(run, seaweedfs, "at-once") for _ in range(2)]
    assert replicas[0].open("s").status == 201
    done, refused = [], set()

    def work(server, number):
        for turn in range(25):
            answer = server.turn("s", f" {number}", f"{number}.{turn}", tokens=2)
            if answer.status == 200:
                done.append(answer.body["usage"]["prompt_tokens"])
            else:
                assert answer.status == 429 or answer.status == 409 and "belongs to" in answer.message, answer.message
                refused.add(number)

    workers = [threading.Thread(target=work, args=(replicas[number % 2], number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [server.get("s").body["epoch"] for server in replicas] == [len(done)] * 2
    assert done and refused


def test_idle_copies_make_room(run, seaweedfs):
    texts = expected(run)
    a = Replica(run, seaweedfs, "room", ["--session-memory", "3MB", "--slots", "2"])
    names = [f"s{number}" for number in range(12)]
    for name in names:
        assert a.open(name).status == 201
        assert a.turn(name, PROMPTS[0]).text == texts[0]
    assert len(a.ask("GET", "/v1/sessions").body["data"]) < len(names)
    for name in names:
        assert a.turn(name, PROMPTS[1]).text == texts[1]


def test_a_session_moves_between_folder_and_store_by_one_command(run, seaweedfs, tmp_path):
    texts = expected(run)
    a = Replica(run, seaweedfs, "folder", ["--state-dir", str(tmp_path / "states")])
    b = Replica(run, seaweedfs, "folder")

    def move(server, name, durability):
        return subprocess.run([PROGRAM.parent / "recurve", "--server", server.address, "session", "move", name, "--durability", durability],
                              cwd=tmp_path, capture_output=True, text=True)

    a.open("s", "local")
    a.open("empty", "local")
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    for name in ("s", "empty"):
        done = move(a, name, "remote")
        assert done.returncode == 0 and "durability     remote, commit" in done.stdout, done
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    assert b.turn("empty", PROMPTS[0]).text == texts[0]
    assert move(a, "s", "local").returncode == 0
    assert a.turn("s", PROMPTS[2]).text == texts[2]
    assert a.get("s").body["durability"] == "local" and b.get("s").status == 404
    assert a.ask("POST", "/v1/sessions/s/marks", {"mark": "m"}).status == 200
    assert "marks, which do not move" in move(a, "s", "remote").stderr
    assert b.open("taken").status == 201 and a.open("taken", "none").status == 201
    a.turn("taken", PROMPTS[0])
    failed = move(a, "taken", "remote")  # the store has one of that name
    assert failed.returncode == 1 and "the state of taken is in taken.state" in failed.stderr, failed
    assert (tmp_path / "taken.state").read_bytes().startswith(b"RCRVSTAT")
    assert not (tmp_path / "s.state").exists()


def test_a_turn_that_breaks_off_has_no_effect(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs, "broken"), Replica(run, seaweedfs, "broken")
    a.open("s")
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", a.port)
        connection.request("POST", "/v1/completions", json.dumps({"session": "s", "prompt": PROMPTS[1], "max_tokens": 2000,
                                                                  "stream": True}), {"Content-Type": "application/json"})
        assert b"data: " in connection.getresponse().readline()
        connection.close()
    late = a.ask("POST", "/v1/completions", {"session": "s", "prompt": PROMPTS[1], "max_tokens": 2000}, x_recurve_timeout_ms="30")
    assert late.status == 504, late.message
    refused = a.turn("s", PROMPTS[1], tokens=-1)
    assert refused.status == 400
    assert a.turn("s", PROMPTS[1]).text == texts[1]
    assert b.turn("s", PROMPTS[2]).text == texts[2]
    assert b.get("s").body["epoch"] == 3


class Router(Replica):
    """vLLM's, which sends requests with the same X-Session-ID to the same replica as long as that answers."""

    def __init__(self, run, replicas):
        self.port, metrics = free_ports(2)
        self.timeout, self.key = 120, None
        self.process = run([TOOLS / "vllm-router", "--host", "127.0.0.1", "--port", self.port, "--prometheus-port", metrics, "--policy",
                            "consistent_hash", "--worker-urls", *(f"http://127.0.0.1:{one.port}" for one in replicas)],
                           f"http://127.0.0.1:{self.port}/health")


def test_sessions_survive_replicas_behind_a_router(run, seaweedfs):
    prompts = [f" {number} and" for number in range(16)]
    texts = expected(run, prompts)
    replicas = [Replica(run, seaweedfs, "routed") for _ in range(3)]
    router = Router(run, replicas)
    names = [f"s{number}" for number in range(4)]
    for name in names:
        assert replicas[0].open(name).status == 201
    for turn, prompt in enumerate(prompts):
        for name in names:
            body = {"session": name, "prompt": prompt, "max_tokens": 12, "seed": 7}
            end = time.monotonic() + 60
            while True:
                answer = router.ask("POST", "/v1/completions", body, X_Session_ID=name, Idempotency_Key=f"{name}.{turn}")
                if answer.status == 200:
                    break
                assert answer.status in (409, 429, 500, 503) and time.monotonic() < end, answer.body
            assert answer.text == texts[turn], (name, turn)
        if turn in (5, 10):  # the one that serves the first session
            serves = next(one for one in replicas if any(
                info["id"] == names[0] and info["epoch"] == turn + 1 for info in one.ask("GET", "/v1/sessions").body["data"]))
            serves.kill()
            replicas.remove(serves)
    assert [replicas[0].get(name).body["epoch"] for name in names] == [len(prompts)] * 4


def test_damage_in_the_store_is_named(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs, "damaged"), Replica(run, seaweedfs, "damaged")
    a.open("s")
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    stored = objects(seaweedfs, "damaged/")
    head, = (key for key in stored if key.endswith("/head"))
    blob, = (key for key in stored if key.startswith("blobs/"))
    for key, text, why in ((head, stored[head][:-1], "it is damaged"), (head, b"", "no head"), (blob, stored[blob][:-1], "bytes that are not"),
                           (blob, b"x" * len(stored[blob]), "bytes that are not"), (blob, None, "is missing in the store")):
        s3 = client(seaweedfs)
        if text is None:
            s3.delete_object(Bucket="bucket", Key="damaged/" + key)
        else:
            s3.put_object(Bucket="bucket", Key="damaged/" + key, Body=text)
        refused = b.turn("s", PROMPTS[1])
        assert refused.status == 500 and why in refused.message, refused.message
        s3.put_object(Bucket="bucket", Key="damaged/" + key, Body=stored[key])
        assert objects(seaweedfs, "damaged/") == stored  # it stays as it is
    assert b.turn("s", PROMPTS[1]).text == texts[1]
