"""The list of what a tree is made of has every library that its programs are compiled with."""

import json
import pathlib
import re
import subprocess
import sys

from conftest import ROOT
from containers import run
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

SHIPPED = ("clients/cpp", "clients/loadgen", "kernels", "model", "server")
# The compiler's and the system's: of each the library in lib/ is listed, or it is part of every Linux.
OF_THE_SYSTEM = re.compile(r"^(glibc|linux|gcc-[0-9]+|llvm-toolchain-[0-9]+|libxcrypt)$")


def included_packages():
    """{source package: a header} of what the shipped sources include and Debian has."""
    names = set()
    for folder in SHIPPED:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cc", ".cu", ".inc"):
                names |= set(re.findall(r"^ *#include <([^>]+)>", path.read_text(), re.M))
    headers = [str(path) for name in names for folder in ("/usr/include", "/usr/include/x86_64-linux-gnu")
               if (path := pathlib.Path(folder, name)).is_file()]
    owners = {}
    for line in subprocess.run(["dpkg-query", "-S", *headers], text=True, capture_output=True).stdout.splitlines():
        owner, header = line.rsplit(": ", 1)
        owners.setdefault(owner.split(",")[0], header)
    lines = run("dpkg-query", "-W", "-f", "${binary:Package}\t${source:Package}\n", *owners).splitlines()
    return {source: owners[owner] for owner, source in (line.split("\t") for line in lines)}


def test_every_library_that_is_compiled_in_is_listed(tree, tmp_path):
    text = run(sys.executable, ROOT / "deploy/sbom.py", tree, "--version", "1")
    (tmp_path / "sbom.spdx.json").write_text(text)
    assert validate_full_spdx_document(parse_file(str(tmp_path / "sbom.spdx.json"))) == []
    listed = json.loads(text)
    packages = {package["name"]: package for package in listed["packages"]}
    shared = {package["sourceInfo"].removeprefix("built from the source package ") for package in packages.values()
              if package.get("sourceInfo", "").startswith("built from")}
    debian = {ref["referenceLocator"].split("/")[2].split("@")[0] for package in packages.values()
              for ref in package.get("externalRefs", []) if ref["referenceLocator"].startswith("pkg:deb/")}
    sources = set(run("dpkg-query", "-W", "-f", "${source:Package}\n", *debian).split())
    included = included_packages()
    assert len(included) > 15
    missing = {source: header for source, header in included.items()
               if not OF_THE_SYSTEM.match(source) and source not in shared | sources}
    assert missing == {}
    for name in ("boost", "cli11", "nlohmann-json", "tomlplusplus", "xxhash", "marked", "xgrammar", "picojson", "dlpack"):
        assert name in packages, name
        assert packages[name]["licenseConcluded"] != "NOASSERTION"
        assert name in ("picojson", "dlpack") or packages[name]["versionInfo"], name
    assert "cuda-cudart" not in packages  # a tree for the CPU
