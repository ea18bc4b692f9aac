"""Every attack in a few seconds, with the bounds that its module states. ctest runs this with
RECURVE_BIN set to the folder of recurve-server; attack.py is for measuring."""

import pathlib
import sys

import pytest

pytest.importorskip("grpc")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import attack  # noqa: E402
import server  # noqa: E402


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    server.generate_stubs(folder)
    return str(folder)


@pytest.mark.parametrize("name", attack.ATTACKS)
def test_attack(name, stubs):
    result = attack.run(name, True, stubs)
    attack.report(name, result, True)
    assert attack.problems(name, result, True) == []
