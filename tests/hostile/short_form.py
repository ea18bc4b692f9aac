"""Every attack in a few seconds, with the bounds of its module. ctest runs this with RECURVE_BIN set to
the folder of recurve-server; attack.py is for measurements."""

import concurrent.futures
import pathlib
import sys

import pytest

pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import attack  # noqa: E402
import server  # noqa: E402

TRIES = 3


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    server.generate_stubs(folder)
    return str(folder)


@pytest.fixture(scope="module")
def afterwards():
    with concurrent.futures.ThreadPoolExecutor() as executor:
        yield executor


@pytest.fixture(scope="module")
def results():
    """By attack. Servers free their memory while others are attacked."""
    return {}


@pytest.mark.parametrize("name", attack.ATTACKS)
def test_attack(name, stubs, afterwards, results):
    # The processors are shared, and a stop of half a second by others breaks a bound on time: so what is
    # found wrong is tried again. What the server does wrong it does each time.
    for _ in range(TRIES):
        results[name] = attack.run(name, True, stubs, afterwards)
        attack.report(name, results[name], True)
        found = attack.problems(name, results[name], True)
        if not found:
            break
    assert found == []


@pytest.mark.parametrize("name", attack.ATTACKS)
def test_its_memory_is_freed(name, results):
    attack.report_memory(name, results[name])
    assert list(results[name].not_freed()) == []
