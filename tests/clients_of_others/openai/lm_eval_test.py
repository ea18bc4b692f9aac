"""EleutherAI's evaluation harness, with a new task, against `recurve score`."""

import json
import math
import os
import pathlib
import subprocess
import urllib.request

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

ROOT = pathlib.Path(__file__).parents[3]
TEXTS = [
    "The old man put down his pipe and went to the window, where it had begun to snow.",
    "It was late when they reached the harbour. Nobody had waited for them, and the boat was gone.",
    "“Who is there?” she said; but no one answered.",
]

ROLLING = {
    "task": "books_rolling",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "bits_per_byte"}],
}
CHOICE = {
    "task": "books_choice",
    "output_type": "multiple_choice",
    "doc_to_text": "{{text[:20]}}",
    "doc_to_target": 0,
    "doc_to_choice": "{{[text[20:36], ' zqx[]=12;,,;#~']}}",
    "metric_list": [{"metric": "acc"}],
}


def ask(server, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def score(server, text):
    """The sum of log-probabilities, in nats, behind BOS, which the harness puts in front of all."""
    bos = ask(server, "/tokenizer_info")["bos_token_id"]
    tokens = ask(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    ids = " ".join(map(str, [bos, *tokens]))
    answer = subprocess.run(
        [pathlib.Path(os.environ["RECURVE_BIN"]) / "recurve", "--server", server.address]
        + ["--json", "score", "--ids", "--prompt", ids],
        capture_output=True,
        text=True,
        check=True,
    )
    final = json.loads(answer.stdout.splitlines()[-1])["final"]
    assert int(final["scored_tokens"]) == len(tokens)
    return float(final["sum_logprob"])


@pytest.fixture(scope="module")
def results(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    documents = folder / "texts.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for task in (ROLLING, CHOICE):
        source = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(documents)}},
            "test_split": "test",
            **task,
        }
        (folder / f"{task['task']}.yaml").write_text(json.dumps(source))  # JSON is YAML
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "base_url": f"{server.url}/v1/completions",
            "model": "books",
            "tokenizer_backend": "remote",
            "num_concurrent": 1,
        },
        batch_size=4,
        tasks=["books_rolling", "books_choice"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )


def test_the_harness_finds_what_recurve_score_finds(server, results):
    total = sum(score(server, text) for text in TEXTS)
    size = sum(len(text.encode()) for text in TEXTS)
    found = results["results"]["books_rolling"]["bits_per_byte,none"]
    assert found == pytest.approx(-total / size / math.log(2), abs=1e-4)
    for sample, text in zip(results["samples"]["books_rolling"], TEXTS, strict=True):
        assert sample["filtered_resps"][0] == pytest.approx(score(server, text), rel=1e-4)


def test_a_choice_is_made_by_the_likelier_end(results):
    assert results["results"]["books_choice"]["acc,none"] == 1.0
