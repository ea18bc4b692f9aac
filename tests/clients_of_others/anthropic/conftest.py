"""Anthropic's own client before a real server; run.sh makes the environments that have it."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
if importlib.util.find_spec("anthropic") is None:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path[:0] = [str(ROOT / "tests/clients/python"), str(ROOT / "tests/clients_of_others/openai")]
