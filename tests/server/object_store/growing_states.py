"""Sessions of durability remote whose states grow: full pages are in objects that turns, marks and servers share."""

import subprocess

from replica import client, LONG, metric, objects, PROMPTS, Replica
from stores import _run, _seaweedfs, MODEL, PROGRAM  # noqa: F401

QWEN = MODEL.parent / "qwen35-books"


def test_a_turn_of_a_state_that_grows_writes_its_new_pages_alone(run, seaweedfs):
    patient = ["--ttft-ms", "0"]
    local = Replica(run, flags=patient, model=QWEN)
    a, b = [Replica(run, seaweedfs, "grows", patient, model=QWEN) for _ in range(2)]
    local.open("s", "none")
    a.open("s")

    def size(server):
        return len(server.ask("GET", "/v1/sessions/s/state").body["bytes"])

    # A page has 64 tokens; all of a state is its fixed part and its pages.
    a.turn("s", PROMPTS[0], tokens=1)
    local.turn("s", PROMPTS[0], tokens=1)
    small, position = size(local), local.get("s").body["position"]
    assert position < 64
    assert a.turn("s", LONG).text == local.turn("s", LONG).text
    position = local.get("s").body["position"]
    page = (size(local) - small) / (position // 64)
    assert page > 50_000 and position > 600
    merges = 0
    for turn in range(32):
        before, stored = metric(a, "recurve_state_store_bytes_total", "written"), objects(seaweedfs, "grows/blobs/")
        prompt = f" {turn} " + LONG[70 * turn:70 * turn + 150]
        assert a.turn("s", prompt).text == local.turn("s", prompt).text
        after = local.get("s").body["position"]
        new = small + page * ((after + 63) // 64 - position // 64 - 1)
        written = metric(a, "recurve_state_store_bytes_total", "written") - before
        now = objects(seaweedfs, "grows/blobs/")
        assert written == sum(len(text) for key, text in now.items() if key not in stored)
        merges += written > 1.2 * new
        position = after
    assert merges == 2, merges
    assert sum(map(len, now.values())) < 1.1 * size(local)  # and what was replaced is gone
    # Another server has all of it, as one state too.
    assert b.ask("GET", "/v1/sessions/s/state").body["bytes"] == local.ask("GET", "/v1/sessions/s/state").body["bytes"]
    assert b.get("s").body["state_bytes"] >= small + page * (position // 64)
    assert b.turn("s", PROMPTS[1]).text == local.turn("s", PROMPTS[1]).text


def test_marks_and_forks_of_a_state_that_grows_share_its_pages(run, seaweedfs, tmp_path):
    keys = tmp_path / "keys"
    subprocess.run([PROGRAM.parent / "recurve", "keys", "state", "new", "--file", keys], check=True, capture_output=True)
    local = Replica(run, flags=["--ttft-ms", "0"], model=QWEN)
    local.open("s", "none")
    steps = [("", LONG), ("mark", "one"), ("", LONG[:400]), ("mark", "two"), ("rewind", "one"), ("", LONG[300:600]), ("fork", "f"),
             ("rewind", "two"), ("", PROMPTS[2]), ("unmark", "two"), ("rewind", "one"), ("", PROMPTS[3])]
    expects = []
    for what, of in steps:
        expects.append(step(local, what, of))
    whole = len(local.ask("GET", "/v1/sessions/f/state").body["bytes"])
    for prefix, flags in (("paged", []), ("sealed-pages", ["--state-keys", str(keys)])):
        servers = [Replica(run, seaweedfs, prefix, ["--ttft-ms", "0", *flags], model=QWEN) for _ in range(2)]
        servers[0].open("s")
        for number, (what, of) in enumerate(steps):
            assert step(servers[number % 2], what, of) == expects[number], (what, of)
            if what == "mark":  # it is of the state and of the pages that are there
                stored = sum(map(len, objects(seaweedfs, f"{prefix}/blobs/").values()))
                assert stored < 1.4 * whole
        assert servers[0].turn("f", PROMPTS[1]).text == local.turn("f", PROMPTS[1]).text
        local.ask("POST", "/v1/sessions/f/rewind", {"position": 0})
        local.ask("DELETE", "/v1/sessions/f")
        step(local, "rewind", "one")
        step(local, "", LONG[300:600])
        step(local, "fork", "f")
        for text in objects(seaweedfs, "sealed-pages/blobs/").values():
            assert text.startswith(b"RCRVSEA1")
        if flags:
            continue
        # Damaged pages are refused by name, and the session stays as it is.
        stored = objects(seaweedfs, f"{prefix}/")
        groups = [key for key, text in stored.items() if key.startswith("blobs/") and b'"first":' in text[:200]]
        assert len(groups) >= 2
        s3 = client(seaweedfs)
        fresh = Replica(run, seaweedfs, prefix, flags, model=QWEN)
        for key in groups:
            other = stored[next(other for other in groups if other != key)]
            for text in (None, stored[key][:-1], other.ljust(len(stored[key]))[:len(stored[key])]):
                if text is None:
                    s3.delete_object(Bucket="bucket", Key=f"{prefix}/{key}")
                else:
                    s3.put_object(Bucket="bucket", Key=f"{prefix}/{key}", Body=text)
                refused = [fresh.ask("GET", f"/v1/sessions/{name}/state") for name in ("s", "f")]
                assert 500 in [answer.status for answer in refused], [answer.message for answer in refused]
                assert any(key in answer.message for answer in refused), [answer.message for answer in refused]
                s3.put_object(Bucket="bucket", Key=f"{prefix}/{key}", Body=stored[key])
        assert objects(seaweedfs, f"{prefix}/") == stored


def test_a_rewind_to_a_token_of_a_state_that_grows_keeps_the_pages_before(run, seaweedfs):
    local = Replica(run, flags=["--ttft-ms", "0"], model=QWEN)
    a, b = [Replica(run, seaweedfs, "paged-tokens", ["--ttft-ms", "0"], model=QWEN) for _ in range(2)]
    local.open("s", "none", rewind_tokens=5000)
    a.open("s", rewind_tokens=5000)
    for what, of in [("", LONG), ("mark", "one"), ("", LONG[:700]), ("", LONG[:300])]:
        assert step(local, what, of) == step(a, what, of)
    whole = len(local.ask("GET", "/v1/sessions/s/state").body["bytes"])
    position, mark = local.get("s").body["position"], local.get("s").body["marks"][0]["position"]
    for server, to in ((a, position - 70), (b, mark + 5), (a, mark - 200), (b, 70)):
        before = metric(server, "recurve_state_store_bytes_total", "written")
        for one in (local, server):
            rewound = one.ask("POST", "/v1/sessions/s/rewind", {"position": to})
            assert rewound.status == 200, rewound.message
        if to > mark:  # the pages of the mark and before are there
            assert metric(server, "recurve_state_store_bytes_total", "written") - before < 0.6 * whole
        assert step(local, "", PROMPTS[1]) == step(server, "", PROMPTS[1])
        assert step(local, "", LONG[:200]) == step(b, "", LONG[:200])


def test_a_drain_moves_marks_of_a_state_that_grows(run, seaweedfs):
    servers = [Replica(run, flags=["--ttft-ms", "0"], model=QWEN),
               Replica(run, seaweedfs, "drained-pages", ["--ttft-ms", "0", "--drain-to-store"], model=QWEN)]
    for server in servers:
        server.open("s", "none")
    for what, of in [("", LONG), ("mark", "one"), ("", LONG[:400]), ("mark", "two"), ("rewind", "one"), ("", LONG[300:600])]:
        assert step(servers[0], what, of) == step(servers[1], what, of)
    servers[1].process.terminate()
    assert servers[1].process.wait() == 0
    servers[1] = Replica(run, seaweedfs, "drained-pages", ["--ttft-ms", "0"], model=QWEN)
    for what, of in [("", PROMPTS[1]), ("rewind", "two"), ("", PROMPTS[2]), ("rewind", "one"), ("", PROMPTS[3]), ("rewind", "two"),
                     ("", LONG[:300])]:
        assert step(servers[0], what, of) == step(servers[1], what, of), (what, of)


def step(server, what, of):
    """What is to be the same at a session of any durability."""
    if what == "":
        answer = server.turn("s", of)
        return (answer if answer.status != 409 else server.turn("s", of)).text  # with a copy of before
    path, body = {"mark": ("/marks", {"mark": of}), "rewind": ("/rewind", {"mark": of}), "fork": ("/fork", {"session": of}),
                  "unmark": (f"/marks/{of}", None)}[what]
    answer = server.ask("DELETE" if what == "unmark" else "POST", f"/v1/sessions/s{path}", body)
    assert answer.status in (200, 201), answer.message
    return answer.body["position"]
