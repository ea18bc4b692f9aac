"""What deploy/ makes, before the tools that use it; run.sh makes the environment that has them."""

import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))  # ports
if importlib.util.find_spec("spdx_tools") is None or "RECURVE_BIN" not in os.environ:
    collect_ignore_glob = ["*_test.py"]  # another Python than run.sh's
else:
    from containers import Containers, run


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """An install tree of the programs in RECURVE_BIN."""
    made = tmp_path_factory.mktemp("install") / "tree"
    run(ROOT / "deploy/install_tree.sh", made, "--built",
        pathlib.Path(os.environ["RECURVE_BIN"]).parent, cwd=ROOT)
    return made


@pytest.fixture(scope="session")
def containers(tmp_path_factory):
    made = Containers(tmp_path_factory.mktemp("containers"))
    if why := made.missing():
        pytest.skip(why)
    made.make_base("localhost/base")
    yield made
    made.close()


@pytest.fixture(scope="session")
def built(containers, tree):
    """What building the image printed; its name is localhost/recurve, with a demo model in it."""
    return containers.build(ROOT / "deploy/image.sh", tree, "--model",
                            ROOT / "weights_tools/demo/xlstm-books", tag="localhost/recurve",
                            base="localhost/base")


@pytest.fixture
def bare_system(tmp_path):
    """The folder of a bare Debian."""
    if "RECURVE_BARE_SYSTEM" not in os.environ:
        pytest.skip("RECURVE_BARE_SYSTEM names no tar of a bare Debian: tests/deploy.sh does")
    made = tmp_path / "bare"
    made.mkdir()
    run("tar", "-C", made, "-xf", os.environ["RECURVE_BARE_SYSTEM"])
    return made
