"""Servers that share cached states of prompts through an object store."""

import signal
import subprocess
import time

import pytest
from replica import client, LONG, metric, objects, Replica
from stores import _run, _seaweedfs, MODEL, PROGRAM, runner, seaweedfs_at  # noqa: F401

SIZE = ["--prefix-store", "1GB", "--ttft-ms", "0"]


def complete(server, prompt):
    """The text, and how many tokens of the prompt were spared."""
    answer = server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 12, "seed": 7, "temperature": 0.8})
    assert answer.status == 200, answer.message
    return answer.text, answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def known(server):
    return metric(server, "recurve_prefix_store_states")


def uses(server):
    return {result: metric(server, "recurve_prefix_store_prompts_total", f'result="{result}"')
            for result in ("hit", "absent", "slower", "refused", "late")}


def written(run, store, prefix, prompts, **of):
    """What a server has answered that leaves their states in the store."""
    server = Replica(run, store, prefix, SIZE + of.pop("flags", []), **of)
    answers = []
    for number, prompt in enumerate(prompts):
        answers.append(complete(server, prompt))
        until(lambda: known(server) > number)  # noqa: B023
    server.kill()
    return answers


@pytest.mark.parametrize("name", ["xlstm-books", "qwen35-books"])
def test_another_server_begins_where_one_has_been(run, seaweedfs, tmp_path, name):
    model = MODEL.parent / name
    keys = tmp_path / "keys"
    subprocess.run([PROGRAM.parent / "recurve", "keys", "state", "new", "--file", keys], check=True, capture_output=True)
    for prefix, flags in ((f"prefix-{name}", []), (f"sealed-prefix-{name}", ["--state-keys", str(keys)])):
        (text, spared), = written(run, seaweedfs, prefix, [LONG], flags=flags, model=model)
        assert spared == 0
        b = Replica(run, seaweedfs, prefix, SIZE + flags, model=model)
        until(lambda: known(b) > 0)  # noqa: B023
        again, spared = complete(b, LONG)
        assert again == text and spared > 500, (spared, uses(b))
        assert uses(b)["hit"] == 1 and metric(b, "recurve_prefix_store_transferred_bytes_total", "read") > 1000
        for key, stored in objects(seaweedfs, f"{prefix}/prefixes/").items():
            assert "/t-default/" in key and stored.startswith(b"RCRVSEA1" if flags else b"RCRVSTAT")
        b.kill()


def test_what_is_wrong_in_the_store_is_refused_and_computed(run, seaweedfs):
    prompts = [LONG, LONG[::-1]]
    answers = written(run, seaweedfs, "wrong", prompts)
    stored = objects(seaweedfs, "wrong/prefixes/")
    s3 = client(seaweedfs)
    for damage in (lambda text, other: text[:-1], lambda text, other: other, lambda text, other: b"x" * len(text)):
        texts = list(stored.values())
        for number, key in enumerate(stored):
            s3.put_object(Bucket="bucket", Key=f"wrong/prefixes/{key}", Body=damage(texts[number], texts[number - 1]))
        server = Replica(run, seaweedfs, "wrong", SIZE)
        until(lambda: known(server) >= 2)  # noqa: B023
        for prompt, (text, _) in zip(prompts, answers):
            assert complete(server, prompt) == (text, 0)
        assert uses(server)["refused"] == 2 and uses(server)["hit"] == 0
        server.kill()


def test_a_store_that_stops_holds_up_no_prompt(run, tmp_path):
    """It is stopped while it is used: requests are computed, and once it continues it is used again."""
    runs = runner(tmp_path)
    processes = []
    start = next(runs)
    store = seaweedfs_at(lambda *of, **more: processes.append(start(*of, **more)), tmp_path)
    answers = written(run, store, "stopped", [LONG, LONG[::-1]])
    a = Replica(run, store, "stopped", SIZE)
    until(lambda: known(a) >= 2)
    assert complete(a, LONG)[0] == answers[0][0]
    processes[0].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert complete(a, LONG[::-1]) == (answers[1][0], 0)
    for number in range(3):
        complete(a, f"{number} " + LONG)
    assert time.monotonic() - began < 20
    assert uses(a)["late"] + uses(a)["refused"] >= 1, uses(a)
    processes[0].send_signal(signal.SIGCONT)
    b = Replica(run, store, "stopped", SIZE)
    until(lambda: known(b) >= 2)
    assert complete(b, LONG[::-1])[0] == answers[1][0] and uses(b)["hit"] == 1
    next(runs, None)
