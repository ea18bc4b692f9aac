"""The package as users get it: built, installed into a bare environment, and typed."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import recurve
from conftest import ROOT

CLIENT = ROOT / "clients/python"
INSTALLED = pathlib.Path(recurve.__file__).parent


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source package, and the wheel built from it alone."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, CLIENT)
    return out


def test_the_source_package_carries_the_protos_and_nothing_generated(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {
        "proto/recurve/v1/inference.proto",
        "proto/recurve/v1/sessions.proto",
        "proto/recurve/v1/control.proto",
        "src/recurve/py.typed",
        "examples/chat.py",
        "hatch_build.py",
    } <= names
    assert not [name for name in names if "_pb2" in name or "_sync/" in name]


def test_the_wheel_is_pure_and_whole(built):
    wheel = next(built.glob("*.whl"))
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "recurve/py.typed",
        "recurve/v1/inference_pb2.py",
        "recurve/v1/inference_pb2.pyi",
    } <= names
    sources = CLIENT / "src/recurve"
    assert {f"recurve/{path.relative_to(sources)}" for path in sources.rglob("*.py")} <= names


def test_both_have_the_licence(built):
    licence = (ROOT / "LICENSE").read_bytes()
    with tarfile.open(next(built.glob("*.tar.gz"))) as source:
        inside, = (member for member in source if member.name.endswith("/LICENSE"))
        assert inside.isfile() and source.extractfile(inside).read() == licence
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        info = next(name for name in wheel.namelist() if name.endswith("/METADATA")).rpartition("/")[0]
        fields = wheel.read(f"{info}/METADATA").decode().partition("\n\n")[0].splitlines()
        assert {"License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(fields)
        assert wheel.read(f"{info}/licenses/LICENSE") == licence


def test_the_blocking_client_is_the_asynchronous_one_without_waiting(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        found = {name: wheel.read(name).decode() for name in wheel.namelist()}
    names = [path.name for path in (CLIENT / "src/recurve/_async").glob("*.py")]
    made = {name.rpartition("/")[2] for name in found if "/_sync/" in name}
    assert made == set(names)
    for name in set(names) - {"__init__.py"}:
        text = found[f"recurve/_sync/{name}"]
        compile(text, name, "exec")
        assert not re.findall("async|await|asyncio|Opening", text, re.IGNORECASE), name


def test_a_replacement_that_nothing_needs_fails_the_build(tmp_path):
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("dist", "v1", "_sync"))
    shutil.copytree(ROOT / "proto/recurve", folder / "proto/recurve")
    hook = folder / "hatch_build.py"
    begin = "WITHOUT_WAITING = ["
    hook.write_text(hook.read_text().replace(begin, begin + '("unmatched", ""),'))
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "matches unmatched" in done.stdout + done.stderr


# As new as they come, and as old as the package says it can be used with.
@pytest.mark.parametrize(
    "kind, versions", [("tar.gz", []), ("whl", ["grpcio==1.60.0", "protobuf==4.25.0"])]
)
def test_it_installs_into_a_bare_environment_and_works(built, address, tmp_path, kind, versions):
    bare = [ROOT / "tests/environment.sh", "--bare", tmp_path / "bare"]
    run(*bare, next(built.glob(f"*.{kind}")), *versions)
    python = tmp_path / "bare/bin/python"
    story = (
        "import recurve, sys\n"
        "with recurve.Client(sys.argv[1]) as client, client.session() as session:\n"
        "    session.generate('It was', max_tokens=3)\n"
        "    with session.fork() as fork:\n"
        "        print(len(''.join(c.text for c in fork.stream(max_tokens=5))) > 0)\n"
        "    print(client.score('It was').scored_tokens, 'numpy' in sys.modules)\n"
    )
    # From Python 3.12 on the types of protobuf's 4.25 are of a kind that Python warns of.
    warnings = ["-W", "error", "-W", "ignore:Type google._upb:DeprecationWarning"]
    printed = run(python, *warnings, "-c", story, address, cwd=tmp_path)
    assert printed == "True\n1 False\n"


@pytest.mark.parametrize("python_version", ["3.10", "3.13"])
def test_mypy_finds_nothing(python_version, tmp_path):
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-version", python_version]
    mypy += ["--cache-dir", tmp_path]
    run(*mypy, "-p", "recurve", cwd=tmp_path)
    run(*mypy, *(CLIENT / "examples").iterdir(), cwd=tmp_path)


def test_pyright_finds_nothing(tmp_path):
    # It looks into the Python that the shell would find.
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    options = {"env": os.environ | {"PATH": path}, "cwd": tmp_path}
    pyright = [sys.executable, "-m", "pyright"]
    run(*pyright, INSTALLED, CLIENT / "examples", **options)
    # What the package offers is typed throughout.
    offered = run(*pyright, "--verifytypes", "recurve", "--ignoreexternal", **options)
    assert "Type completeness score: 100%" in offered
