"""Drains: a server that ends moves its sessions to the store."""

import re

from replica import expected, PROMPTS, Proxy, Replica
from stores import _run, _seaweedfs  # noqa: F401


def test_a_drain_moves_stored_tokens(run, seaweedfs, tmp_path):
    """Of a session and its marks, which the folder alone had after a restart."""
    def start(*flags):
        return Replica(run, seaweedfs, "drained-tokens", ["--state-dir", str(tmp_path / "states"), *flags])

    alone = Replica(run)
    a = start()
    for server, durability in ((alone, "none"), (a, "local")):
        server.open("s", durability, rewind_tokens=30)
        for turn in range(3):
            server.turn("s", PROMPTS[turn])
            server.ask("POST", "/v1/sessions/s/marks", {"mark": f"m{turn}"})
        server.turn("s", PROMPTS[3])
    a.process.terminate()
    assert a.process.wait() == 0
    a = start("--drain-to-store")
    a.process.terminate()
    assert a.process.wait() == 0
    b = Replica(run, seaweedfs, "drained-tokens")
    info, known = b.get("s").body, alone.get("s").body
    for member in ("position", "marks", "rewind_tokens", "tokens_from"):
        assert info[member] == known[member], member
    for back in (2, 9):
        for server in (alone, b):
            rewound = server.ask("POST", "/v1/sessions/s/rewind", {"position": known["position"] - back})
            assert rewound.status == 200, rewound.message
        assert b.turn("s", PROMPTS[4]).text == alone.turn("s", PROMPTS[4]).text
        known = alone.get("s").body
    for server in (alone, b):
        assert server.ask("POST", "/v1/sessions/s/rewind", {"mark": "m1"}).status == 200
        assert server.ask("POST", "/v1/sessions/s/rewind", {"position": info["marks"][1]["position"] - 4}).status == 200
    assert b.turn("s", PROMPTS[5]).text == alone.turn("s", PROMPTS[5]).text


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
    assert "event=drained_to_store moved=43 failed=0 late=0 marks_left=0" in (tmp_path / "log").read_text()
    b = Replica(run, seaweedfs, "drained")
    for name in ("none", "local", "remote", *(f"many{number}" for number in range(40))):
        assert b.turn(name, PROMPTS[1]).text == texts[1], name
    assert b.turn("empty", PROMPTS[0]).text == texts[0]
    # What was durable in the folder is not there any more: it would be continued twice.
    again = Replica(run, seaweedfs, "drained", ["--state-dir", str(tmp_path / "states")])
    assert again.ask("GET", "/v1/sessions").body["data"] == []
    assert again.turn("local", PROMPTS[2]).text == texts[2]


def test_a_drain_moves_marks_to_the_store(run, seaweedfs, tmp_path):
    """Marks in host memory and on the disk, on another server, and on the next one that takes the session over."""
    texts = expected(run)
    a = Replica(run, seaweedfs, "drained-marks", ["--state-dir", str(tmp_path / "states"), "--drain-to-store"])
    marks, states = ("zero", "one", "two", "three"), {}

    def state(server, name):
        return server.ask("GET", f"/v1/sessions/{name}/state").body["bytes"]

    for name in ("none", "local"):
        assert a.open(name, name).status == 201
        for turn, mark in enumerate(marks):
            assert a.ask("POST", f"/v1/sessions/{name}/marks", {"mark": mark}).status == 200
            states[name, mark] = state(a, name) if turn > 0 else None
            assert a.turn(name, PROMPTS[turn]).text == texts[turn]
    known = {name: a.get(name).body["marks"] for name in ("none", "local")}
    assert [mark["name"] for mark in known["none"]] == sorted(marks)
    a.process.terminate()
    assert a.process.wait() == 0
    log = (tmp_path / "log").read_text()
    assert "event=drained_to_store moved=2 failed=0 late=0 marks_left=0" in log and "marks_not_moved" not in log
    b, c = [Replica(run, seaweedfs, "drained-marks") for _ in range(2)]
    for name in ("none", "local"):
        assert b.get(name).body["marks"] == known[name]
        assert b.turn(name, PROMPTS[4]).text == texts[4], "the session itself is as it was"
        for server in (b, c):
            for turn in (2, 0, 3, 1):
                assert server.ask("POST", f"/v1/sessions/{name}/rewind", {"mark": marks[turn]}).status == 200
                if turn > 0:
                    assert state(server, name) == states[name, marks[turn]], (name, turn)
                assert server.turn(name, PROMPTS[turn]).text == texts[turn]
        assert c.get(name).body["marks"] == known[name]


def test_a_drain_says_what_it_could_not_move(run, seaweedfs, tmp_path):
    proxy = Proxy(seaweedfs)
    a = Replica(run, proxy.url, "late", ["--drain-to-store", "--drain-seconds", "1"])
    a.open("s", "none")
    a.turn("s", PROMPTS[0])
    assert Replica(run, seaweedfs, "late").open("taken").status == 201
    a.open("taken", "none")
    a.turn("taken", PROMPTS[0])
    a.open("marked", "none")
    a.turn("marked", PROMPTS[0])
    assert a.ask("POST", "/v1/sessions/marked/marks", {"mark": "m"}).status == 200
    assert a.ask("POST", "/v1/sessions/marked/rewind", {"position": 0}).status == 200  # it has no state, and its mark has
    proxy.arm(lambda line: "/blobs/" in line and line.startswith("PUT"), times=1000)
    a.process.terminate()
    assert a.process.wait() == 0
    log = (tmp_path / "log").read_text()
    assert "event=drained_to_store moved=1 failed=2 late=0 marks_left=1" in log
    assert re.search("event=marks_not_moved .*name=marked marks=1 why=", log)
    assert 'name=taken why="session \\"taken\\" exists' in log
    proxy.close()
