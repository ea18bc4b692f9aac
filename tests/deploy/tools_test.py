"""weights_tools as a wheel, in a bare virtual environment, and as the Debian package recurve-tools."""

import gzip
import pathlib
import sys
import tarfile
import zipfile

import pytest
from conftest import ROOT
from containers import run

CONFIG = ROOT / "weights_tools/demo/configs/delta_net.json"
LICENCE = (ROOT / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source package, and the wheel built from it alone."""
    out = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT / "weights_tools")
    return out


def modules():
    return {f"weights_tools/{path.relative_to(ROOT / 'weights_tools')}"
            for pattern in ("*.py", "families/*.py", "*.jinja")
            for path in (ROOT / "weights_tools").glob(pattern) if path.name != "hatch_build.py"}


def works(*command, folder):
    """The installed command writes, quantizes and reads a checkpoint."""
    run(*command, "random", CONFIG, folder / "model")
    run(*command, "quantize", folder / "model", folder / "int8", "--weights", "int8", "--processes", "2")
    assert "delta_net" in run(*command, "inspect", folder / "int8")
    assert run(*command, "--help").startswith("usage: recurve-tools ")


def test_the_wheel_has_the_modules_and_the_licence(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as source:
        inside, = (member for member in source if member.name.endswith("/LICENSE"))
        assert source.extractfile(inside).read() == LICENCE
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        info = next(name for name in names if name.endswith("/METADATA")).rpartition("/")[0]
        assert {name for name in names if not name.startswith(info)} == modules()
        assert "License-Expression: Apache-2.0\n" in wheel.read(f"{info}/METADATA").decode()
        assert wheel.read(f"{info}/licenses/LICENSE") == LICENCE


def test_the_wheel_works_in_a_bare_environment(built, tmp_path):
    run(ROOT / "tests/environment.sh", "--bare", tmp_path / "bare", next(built.glob("*.whl")))
    works(tmp_path / "bare/bin/recurve-tools", folder=tmp_path)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    out = tmp_path_factory.mktemp("tools-deb")
    deb = pathlib.Path(run(ROOT / "deploy/tools_deb.sh", out).strip())
    run("dpkg-deb", "--extract", deb, out / "root")
    return deb, out / "root"


def test_the_debian_package_works_with_debians_python(package, tmp_path):
    deb, root = package
    assert run("dpkg-deb", "--field", deb, "Depends") == "python3 (>= 3.11), python3-numpy\n"
    assert (root / "usr/share/doc/recurve-tools/copyright").read_bytes() == LICENCE
    page = gzip.decompress((root / "usr/share/man/man1/recurve-tools.1.gz").read_bytes()).decode()
    assert page.count("usage: recurve\\-tools ") == page.count(".SH ") - 1 > 5
    packages = root / "usr/lib/python3/dist-packages"
    assert {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()} == modules()
    environment = ["env", "-C", tmp_path, f"PYTHONPATH={packages}", "PYTHONDONTWRITEBYTECODE=1"]
    works(*environment, root / "usr/bin/recurve-tools", folder=tmp_path)


def test_it_is_a_package_that_dpkg_accepts(package, bare_system):
    deb, _ = package
    run("dpkg", f"--root={bare_system}", "--force-depends", "--install", deb)
    assert (bare_system / "usr/bin/recurve-tools").exists()
    run("dpkg", f"--root={bare_system}", "--purge", "recurve-tools")
    assert not (bare_system / "usr/bin/recurve-tools").exists()
