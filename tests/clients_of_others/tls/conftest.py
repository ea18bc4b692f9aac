"""Clients that speak TLS; kserve/run.sh makes the environment that has them."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
if None in (importlib.util.find_spec("tritonclient"), importlib.util.find_spec("recurve")):
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    sys.path.insert(0, str(ROOT / "tests/clients/python"))
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """An untrusted authority."""
    return Authority(tmp_path_factory.mktemp("stranger"))
