"""Marks, returns and forks of sessions of durability remote."""

import random
import subprocess

from replica import expected, expected_after, objects, of_head, PROMPTS, Proxy, Replica
from stores import _run, _seaweedfs, PROGRAM  # noqa: F401


def test_marks_rewinds_and_forks_give_the_bits_of_a_local_session(run, seaweedfs, tmp_path):
    """The same commands on a session of durability local, and on a remote one at servers in turn."""
    local = Replica(run, flags=["--state-dir", str(tmp_path / "states")])
    a, b = Replica(run, seaweedfs, "marked"), Replica(run, seaweedfs, "marked")
    chance = random.Random(4)
    steps = [("turn", 0), ("mark", "one"), ("turn", 1), ("fork", "early"), ("mark", "two"), ("turn", 2), ("rewind", "one"), ("turn", 3),
             ("mark", "two"), ("rewind", "one"), ("unmark", "one"), ("turn", 4), ("rewind", "two"), ("turn", 5), ("mark", "again"),
             ("fork", "late"), ("rewind", 0), ("turn", 0), ("rewind", "again"), ("turn", 1), ("unmark", "two"), ("unmark", "again")]

    def take(server, what, of):
        def command(method, path, body=None):
            answer = server.ask(method, f"/v1/sessions/s{path}", body)
            assert answer.status in (200, 201), (what, of, answer.message)
            return answer.body
        if what == "turn":
            return command_or_turn(server, of)
        if what == "mark":
            return command("POST", "/marks", {"mark": of})
        if what == "unmark":
            return command("DELETE", f"/marks/{of}")
        if what == "fork":
            return command("POST", "/fork", {"session": of})
        return command("POST", "/rewind", {"mark": of} if isinstance(of, str) else {"position": of})

    def command_or_turn(server, of):
        answer = server.turn("s", PROMPTS[of])
        if answer.status == 409:  # with a copy of before
            answer = server.turn("s", PROMPTS[of])
        return {"text": answer.text}

    assert local.open("s", "local").status == 201 and a.open("s").status == 201
    for what, of in steps:
        server = chance.choice((a, b))
        known, found = take(local, what, of), take(server, what, of)
        for member in ("text", "position", "epoch", "marks", "parent"):
            assert found.get(member) == known.get(member), (what, of, member)
        for one in (a, b):
            got = one.get("s").body
            assert [got.get(member) for member in ("position", "epoch", "marks")] == [
                local.get("s").body.get(member) for member in ("position", "epoch", "marks")], (what, of)
    for name in ("early", "late"):
        assert b.get(name).body["durability"] == "remote" and b.get(name).body["parent"] == "s"
        assert b.turn(name, PROMPTS[2]).text == local.turn(name, PROMPTS[2]).text
    assert a.turn("s", PROMPTS[2]).status in (200, 409)
    # Only what heads name is in the store: three states of three sessions.
    for server in (a, b):
        server.ask("GET", "/v1/sessions/s")
    assert len(objects(seaweedfs, "marked/blobs/")) == 3


def test_rewinds_to_tokens_give_the_bits_of_a_local_session(run, seaweedfs, tmp_path):
    """To positions before, at and behind marks, of this text and of others, at servers in turn, with all tokens stored and with few."""
    local = Replica(run, flags=["--state-dir", str(tmp_path / "states")])
    a, b = Replica(run, seaweedfs, "tokens"), Replica(run, seaweedfs, "tokens")
    for name, tokens in (("all", 1000), ("few", 40)):
        chance = random.Random(tokens)
        assert local.open(name, "local", rewind_tokens=tokens).status == 201
        opened = a.open(name, rewind_tokens=tokens)
        assert opened.status == 201 and opened.body["rewind_tokens"] == tokens, opened.message
        done, refused = 0, 0

        def both(method, path, body):
            known = local.ask(method, f"/v1/sessions/{name}/{path}", body)
            server = chance.choice((a, b))
            found = server.ask(method, f"/v1/sessions/{name}/{path}", body)
            assert found.status == known.status, (path, body, found.message, known.message)
            if found.status == 200:
                members = ("position", "epoch", "marks", "rewind_tokens", "tokens_from")
                for one in (found, a.get(name), b.get(name)):
                    assert [one.body[member] for member in members] == [known.body[member] for member in members], (path, body)
            return known.status

        def turn(prompt):
            server = chance.choice((a, b))
            answer = server.turn(name, prompt)
            if answer.status == 409:  # with a copy of before
                answer = server.turn(name, prompt)
            assert answer.text == local.turn(name, prompt).text

        for round in range(12):
            turn(PROMPTS[round % len(PROMPTS)])
            if round % 3 == 0:
                both("POST", "marks", {"mark": f"m{round}"})
                turn(PROMPTS[round % 4])
            position = local.get(name).body["position"]
            to = chance.randrange(max(1, position - 50), position)
            status = both("POST", "rewind", {"position": to})
            done += status == 200
            refused += status == 404
            if round % 5 == 4:
                both("POST", "rewind", {"mark": "m3"})
        assert done > 5 and (refused > 0) == (name == "few"), (done, refused)
        assert both("POST", "rewind", {"position": 0}) == 200
        turn(PROMPTS[0])
        assert both("POST", "rewind", {"position": 3}) == 200
        turn(PROMPTS[1])
    for server in (a, b):  # a fork stores as many
        forked = server.ask("POST", "/v1/sessions/few/fork", {"session": f"fork{server.port}"}).body
        assert forked["rewind_tokens"] == 40
    assert a.ask("POST", f"/v1/sessions/fork{b.port}/rewind", {"position": 3}).status == 200


def test_a_rewind_to_a_token_that_the_store_does_not_take(run, seaweedfs):
    proxy = Proxy(seaweedfs)
    a, b = Replica(run, proxy.url, "late-tokens"), Replica(run, seaweedfs, "late-tokens")
    a.open("s", rewind_tokens=1000)
    first = a.turn("s", PROMPTS[0])
    position = a.get("s").body["position"]
    proxy.arm(of_head("PUT"))
    rewound = a.ask("POST", "/v1/sessions/s/rewind", {"position": 2})
    assert rewound.status == 200 and rewound.body["position"] == 2 and proxy.fired == 1, rewound.message
    assert b.get("s").body["position"] == 2
    proxy.arm(lambda line: line.startswith("PUT"), times=1000)
    refused = a.ask("POST", "/v1/sessions/s/rewind", {"position": 1})
    assert refused.status == 429, refused.message
    proxy.arm(None)
    assert a.get("s").body["position"] in (1, 2)  # the store may have it
    assert b.ask("POST", "/v1/sessions/s/rewind", {"position": 0}).status == 200
    again = b.turn("s", PROMPTS[0])
    assert again.text == first.text and b.get("s").body["position"] == position
    proxy.close()


def test_forks_of_sessions_of_any_durability_can_be_in_the_store(run, seaweedfs):
    texts = expected(run)
    a, b = Replica(run, seaweedfs, "forked"), Replica(run, seaweedfs, "forked")
    a.open("mine", "none")
    assert a.turn("mine", PROMPTS[0]).text == texts[0]
    for name, of, server, durability in (("one", "mine", a, "remote"), ("two", "one", b, "remote"), ("three", "two", a, "none"),
                                         ("four", "one", b, "none")):
        forked = server.ask("POST", f"/v1/sessions/{of}/fork", {"session": name, "durability": durability})
        assert forked.status == 201 and forked.body["durability"] == durability, forked.message
    a.open("empty")
    assert b.ask("POST", "/v1/sessions/empty/fork", {"session": "nothing"}).status == 201
    assert b.turn("one", PROMPTS[1]).text == texts[1]
    assert a.turn("two", PROMPTS[1]).text == texts[1]
    assert a.turn("three", PROMPTS[1]).text == texts[1]
    assert b.turn("four", PROMPTS[1]).text == texts[1]
    assert a.turn("nothing", PROMPTS[0]).text == texts[0]
    assert a.get("three").body["durability"] == "none" and b.get("three").status == 404


def test_a_mark_keeps_the_recorded_answer(run, seaweedfs, tmp_path):
    keys = tmp_path / "keys"
    subprocess.run([PROGRAM.parent / "recurve", "keys", "state", "new", "--file", keys], check=True, capture_output=True)
    for prefix, flags in (("plain-mark", []), ("sealed-mark", ["--state-keys", str(keys)])):
        a, b = Replica(run, seaweedfs, prefix, flags), Replica(run, seaweedfs, prefix, flags)
        a.open("s")
        first = a.turn("s", PROMPTS[0], "r1")
        long = b.turn("s", PROMPTS[1], "r2", tokens=30)
        assert first.status == 200 and b.ask("POST", "/v1/sessions/s/marks", {"mark": "m"}).status == 200
        for server in (a, b):
            again = server.turn("s", PROMPTS[1], "r2", tokens=30)
            if again.status == 409:
                again = server.turn("s", PROMPTS[1], "r2", tokens=30)
            assert again.body["choices"] == long.body["choices"]
        assert a.ask("POST", "/v1/sessions/s/rewind", {"mark": "m"}).status == 200
        assert a.turn("s", PROMPTS[2]).text == expected_after(run, [(PROMPTS[0], 12), (PROMPTS[1], 30)], PROMPTS[2])


def test_a_mark_that_the_store_answers_late(run, seaweedfs):
    """Changes of marks whose outcome is unknown, or that another server has overtaken."""
    proxy = Proxy(seaweedfs)
    a, b = Replica(run, proxy.url, "late-marks"), Replica(run, seaweedfs, "late-marks")
    texts = expected(run)
    a.open("s")
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    proxy.arm(of_head("PUT"))
    marked = a.ask("POST", "/v1/sessions/s/marks", {"mark": "one"})
    assert marked.status == 200 and proxy.fired == 1, marked.message
    assert b.turn("s", PROMPTS[1]).text == texts[1]
    marked = a.ask("POST", "/v1/sessions/s/marks", {"mark": "two"})  # of what b has committed
    assert marked.status == 200 and [mark["position"] for mark in marked.body["marks"]][1] == b.get("s").body["position"], marked.body
    proxy.arm(of_head("PUT"))
    assert a.ask("POST", "/v1/sessions/s/rewind", {"mark": "one"}).status == 200 and proxy.fired == 1
    assert a.turn("s", PROMPTS[1]).text == texts[1]
    assert b.ask("POST", "/v1/sessions/s/rewind", {"mark": "two"}).status == 200
    assert b.turn("s", PROMPTS[2]).text == texts[2]
    proxy.close()
