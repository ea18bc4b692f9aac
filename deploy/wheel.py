"""Packs an install tree (deploy/install_tree.sh) into a wheel, recurve-server, for machines without a
compiler: `pip install` of it puts `recurve-server` and `recurve` on the PATH.

    deploy/wheel.py TREE OUT        prints the wheel's path

It holds programs, their manual pages and completions, and libraries, and of Python only what starts them: it suits every Python 3.9 or
later, and every glibc from the one on that its files ask for. The same tree gives the same bytes.
"""

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import stat
import subprocess
import zipfile

PROGRAMS = ("recurve-server", "recurve", "recurve-loadgen")
START = '''"""Starts the programs in the folder of this file."""

import os
import pathlib
import sys


def start(name):
    program = pathlib.Path(__file__).parent / "bin" / name
    os.execv(program, [str(program), *sys.argv[1:]])


'''


def version_of(tree):
    """PEP 440's form of what the server says: "1.2.0+3 (0123)" is 1.2.0.post3."""
    said = subprocess.run([tree / "bin/recurve-server", "--version"], check=True, text=True,
                          capture_output=True).stdout
    return said.split()[1].replace("+", ".post")


def needed_libraries(tree, programs):
    """The files in lib/ that these programs load, in order."""
    said = "".join(
        subprocess.run(["ldd", tree / "bin" / program], check=True, text=True,
                       capture_output=True).stdout for program in programs)
    found = {pathlib.Path(path).resolve() for path in re.findall(r"=> (/\S+)", said)}
    return sorted(path for path in found if path.is_relative_to(tree.resolve()))


def contents(tree, version):
    """(name in the wheel, bytes, executable) of all but RECORD."""
    programs = [name for name in PROGRAMS if (tree / "bin" / name).exists()]
    yield "recurve_server/__init__.py", START.encode() + "\n\n".join(
        f"def {name.replace('-', '_')}():\n    start(\"{name}\")\n" for name in programs
    ).encode(), False
    yield "recurve_server/__main__.py", b"from . import recurve_server\n\nrecurve_server()\n", False
    for name in programs:
        yield f"recurve_server/bin/{name}", (tree / "bin" / name).read_bytes(), True
    for library in needed_libraries(tree, programs):
        yield f"recurve_server/lib/{library.name}", library.read_bytes(), False
    for page in sorted(path for path in (tree / "share").rglob("*") if path.is_file()):
        yield f"recurve_server-{version}.data/data/{page.relative_to(tree)}", page.read_bytes(), False
    info = f"recurve_server-{version}.dist-info"
    if (tree / "LICENSE").exists():
        yield f"{info}/licenses/LICENSE", (tree / "LICENSE").read_bytes(), False
    yield f"{info}/METADATA", (
        "Metadata-Version: 2.4\nName: recurve-server\n"
        f"Version: {version}\n"
        "Summary: gRPC and HTTP inference server for recurrent language models\n"
        "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.9\n"
        "Description-Content-Type: text/markdown\n\n"
        "`recurve-server MODEL_DIR` serves a checkpoint, `recurve` is its client.\n").encode(), False
    yield f"{info}/WHEEL", (
        f"Wheel-Version: 1.0\nGenerator: recurve\nRoot-Is-Purelib: false\nTag: {tag(tree)}\n"
    ).encode(), False
    yield f"{info}/entry_points.txt", ("[console_scripts]\n" + "".join(
        f"{name} = recurve_server:{name.replace('-', '_')}\n" for name in programs)).encode(), False


def glibc_of(tree):
    """The glibc that the tree's files ask for, as (2, 36)."""
    files = [*tree.glob("bin/*"), *tree.glob("lib/*")]
    symbols = subprocess.run(["objdump", "-T", *files], check=True, text=True,
                             capture_output=True).stdout
    return max((int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))


def tag(tree):
    major, minor = glibc_of(tree)
    return f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"


def write(tree, out):
    version = version_of(tree)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"recurve_server-{version}-{tag(tree)}.whl"
    record = f"recurve_server-{version}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, content, executable):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            archive.writestr(entry, content)
        for name, content, executable in contents(tree, version):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(content)}\n")
            add(name, content, executable)
        add(record, ("".join(lines) + f"{record},,\n").encode(), False)
    return wheel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    print(write(arguments.tree, arguments.out))


if __name__ == "__main__":
    main()
