"""Servers that share an object store: sessions of durability remote."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

from replica import client, expected, objects, of_head, PROMPTS, Proxy, Replica
from stores import _run, _seaweedfs, free_ports, KEYS, MODEL, PROGRAM  # noqa: F401


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
    a.open("s")
    position = a.turn("s", PROMPTS[0]).body["usage"]["total_tokens"]
    b.open("local", "none")
    b.turn("local", PROMPTS[0])
    before = objects(seaweedfs, "refused/")
    for server in (a, b):  # with a copy and without one
        for path, body, status, why in (("rewind", {"mark": "m"}, 404, 'session "s" has no mark "m"'),
                                        ("rewind", {"position": 1}, 404, "stores none of its tokens: rewind to a mark"),
                                        ("rewind", {"position": position + 1}, 400, "position must be at most"),
                                        ("fork", {"session": "t", "ttl_seconds": 5}, 400, "ttl_seconds"),
                                        ("fork", {"session": "s"}, 409, 'session "s" exists')):
            answer = server.ask("POST", f"/v1/sessions/s/{path}", body)
            assert answer.status == status and why in answer.message, (path, answer.message)
        assert server.ask("DELETE", "/v1/sessions/s/marks/m").status == 404
    assert objects(seaweedfs, "refused/") == before
    assert b.ask("GET", "/v1/sessions/none").status == 404
    for path, body in (("marks", {"mark": "m"}), ("rewind", {"mark": "m"}), ("fork", {"durability": "remote"})):
        assert b.ask("POST", f"/v1/sessions/none/{path}", body).status == 404
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
    asked = threading.Thread(target=lambda: answers.append(a.turn("s", PROMPTS[1], "r1", tokens=4000)))  # longer than it takes to stop it
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
    begun, allowed = threading.Condition(), 0  # turns of a session

    def work(number):
        own = random.Random(number)
        for turn, prompt in enumerate(prompts):
            with begun:
                begun.wait_for(lambda: turn < allowed)
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

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(sessions)]
    for worker in workers:
        worker.start()
    while allowed < turns:
        with begun:
            allowed += turns // 5
            begun.notify_all()
        time.sleep(chance.random() / 2)  # to be killed at any step of these turns
        at = chance.randrange(2)
        replicas[at].kill()
        replicas[at] = Replica(run, seaweedfs, "killed")
    for worker in workers:
        worker.join()
    assert not wrong
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


def test_the_bytes_of_a_tenant_in_the_store_are_limited(run, seaweedfs, tmp_path):
    """On all servers together: what one has written counts at the others."""
    file = tmp_path / "keys"
    keys = {tenant: subprocess.run([PROGRAM.parent / "recurve", "keys", "new", "--file", file, "--tenant", tenant], check=True,
                                   capture_output=True, text=True).stdout.split()[-1] for tenant in ("alice", "bob")}
    a, b, free = [Replica(run, seaweedfs, "quota", ["--keys", str(file)], key=keys[of]) for of in ("alice", "alice", "bob")]

    def used(tenant):
        return sum(map(len, objects(seaweedfs, f"quota/blobs/t-{tenant}/").values()))

    free.open("s")
    free.turn("s", PROMPTS[0])
    state = used("bob")
    limited = json.loads(file.read_text())
    limited["tenants"] = {"alice": {"store_bytes": int(2.5 * state)}}
    file.write_text(json.dumps(limited))
    time.sleep(2)  # it is read again each second
    for name in ("one", "two"):
        assert a.open(name).status == 201
        assert a.turn(name, PROMPTS[0]).status == 200
    for server in (a, b):
        opened = server.open("three")
        assert opened.status == 429 and "bytes of the store" in opened.message, opened.message
        assert server.get("three").status == 404
        for path, body in (("marks", {"mark": "m"}), ("fork", {"session": "fork"})):
            refused = server.ask("POST", f"/v1/sessions/one/{path}", body)
            assert refused.status == 429 and "bytes of the store" in refused.message, refused.message
        assert server.get("fork").status == 404
    texts = expected(run)
    assert a.turn("one", PROMPTS[1]).text == texts[1]  # what it has continues
    for name in ("three", "four", "five"):
        assert free.open(name).status == 201 and free.turn(name, PROMPTS[0]).status == 200
    usage = subprocess.run([PROGRAM.parent / "recurve", "store", "usage", "--state-store", "s3://bucket/quota", "--state-endpoint", seaweedfs],
                           capture_output=True, text=True, env={**os.environ, **KEYS})
    assert usage.stdout == f"{used('alice')} 2 alice\n{used('bob')} 4 bob\n", usage
    assert a.ask("DELETE", "/v1/sessions/two").status == 200
    assert a.open("three").status == 201 and a.turn("three", PROMPTS[0]).text == texts[0]
    assert a.open("four").status == 429

    # Sessions that have no state yet get one, and a turn on a state that a mark has adds one, while there is room.
    for name in ("one", "three"):
        assert a.ask("DELETE", f"/v1/sessions/{name}").status == 200
    for name in ("four", "five", "six"):
        assert a.open(name, rewind_tokens=100).status == 201
    assert a.turn("four", PROMPTS[0]).status == 200
    assert a.ask("POST", "/v1/sessions/four/marks", {"mark": "m"}).status == 200
    assert a.turn("five", PROMPTS[0]).status == 200
    for refused in (a.turn("six", PROMPTS[0]), a.turn("four", PROMPTS[1]), a.ask("POST", "/v1/sessions/four/rewind", {"position": 3})):
        assert refused.status == 429 and "bytes of the store" in refused.message, refused.message
    assert a.turn("five", PROMPTS[1]).text == texts[1]
    assert a.ask("DELETE", "/v1/sessions/five").status == 200
    assert a.turn("four", PROMPTS[1]).text == texts[1]


def test_what_killed_servers_leave_is_collected(run, seaweedfs):
    a = Replica(run, seaweedfs, "collected")
    a.open("s")
    a.turn("s", PROMPTS[0])
    a.open("closed")
    assert a.ask("DELETE", "/v1/sessions/closed").status == 200
    left, odd = "0123456789abcdef" * 2, "o\u00f6 &<x>\u001b[31m"
    client(seaweedfs).put_object(Bucket="bucket", Key=f"collected/blobs/t-default/{left}", Body=b"left")
    client(seaweedfs).put_object(Bucket="bucket", Key=f"collected/blobs/t-default/{odd}", Body=b"of others")

    def collect(*flags):
        return subprocess.run([PROGRAM.parent / "recurve", "store", "collect", "--state-store", "s3://bucket/collected", "--state-endpoint",
                               seaweedfs, *flags], capture_output=True, text=True, env={**os.environ, **KEYS})

    done = collect("--dry-run")
    assert (done.returncode, done.stdout) == (0, "") and "2 heads, 2 blobs, 0 states of prompts; 0 would go with 0 bytes; 1 blobs without a head are recent; 1 heads" in done.stderr, done
    assert "/o?? &<x>" in done.stderr and "no server has written it, and it stays" in done.stderr and "\x1b" not in done.stderr, done
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

    a.open("s", "local", rewind_tokens=100)
    a.open("empty", "local", rewind_tokens=100)
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    for name in ("s", "empty"):
        done = move(a, name, "remote")
        assert done.returncode == 0 and "durability     remote, commit" in done.stdout, done
        assert b.get(name).body["rewind_tokens"] == 100 and b.get(name).body["tokens_from"] == 0
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    assert b.turn("empty", PROMPTS[0]).text == texts[0]
    assert move(a, "s", "local").returncode == 0
    assert a.turn("s", PROMPTS[2]).text == texts[2]
    assert a.get("s").body["durability"] == "local" and b.get("s").status == 404
    assert a.get("s").body["rewind_tokens"] == 100 and a.get("s").body["tokens_from"] == 0
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
