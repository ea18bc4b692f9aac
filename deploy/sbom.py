"""What an install tree is made of, as SPDX 2.3 in JSON: the program, each library in lib/ with its
checksum, and the Debian package that it was copied from on this machine, and the libraries that are
compiled in.

    deploy/sbom.py TREE --version VERSION [--created SECONDS] > sbom.spdx.json

The same tree gives the same bytes. --created: seconds since 1970; default: those of
SOURCE_DATE_EPOCH, or 0.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import typing

LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu",
                   "/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib", "/lib")


def said(*command):
    """What a command prints; nothing where it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def paths_of(library):
    """Where a library of this file name is on this machine, as dpkg may know it, the best first."""
    for folder in LIBRARY_FOLDERS:
        path = pathlib.Path(folder, library)
        if path.exists():
            # dpkg knows some files by the path from before /lib was /usr/lib.
            return [name for candidate in (path.resolve(), path)
                    for name in (str(candidate), str(candidate).removeprefix("/usr"))]
    return []


def debian_packages(libraries):
    """{file name: (name, version, architecture, source)} of the packages that have libraries of
    these file names; without those that none has. dpkg reads all its lists each time it is asked."""
    paths = {library: paths_of(library) for library in libraries}
    owners = {}
    for line in said("dpkg-query", "-S", *sum(paths.values(), [])).splitlines():
        package, path = line.rsplit(": ", 1)
        if not package.startswith("diversion "):
            owners.setdefault(path, package)
    described = {}
    fields = "${binary:Package}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
    for line in said("dpkg-query", "-W", "-f", fields, *set(owners.values())).splitlines():
        package, *described[package] = line.split("\t")
    return {library: described[owners[path]] for library, known in paths.items()
            for path in reversed(known) if path in owners}


def spdx_id(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.]", "-", name)


def distribution():
    release = dict(line.rstrip().split("=", 1) for line in open("/etc/os-release") if "=" in line)
    return release["ID"].strip('"')


class CompiledIn(typing.NamedTuple):
    """A library that programs have in themselves, so that it is no file in lib/."""

    name: str
    licence: str
    how: str  # in words
    # Of Debian's package with this file, the version is known; of xgrammar and what it comes with, from xgrammar.txt.
    file: str | None = None
    marker: bytes | None = None  # some program has it if it has the library; None: the server always has it


COMPILED_IN = [
    CompiledIn("boost", "BSL-1.0", "headers", "/usr/include/boost/version.hpp"),
    CompiledIn("cli11", "BSD-3-Clause", "headers", "/usr/include/CLI/CLI.hpp"),
    CompiledIn("nlohmann-json", "MIT", "headers", "/usr/include/nlohmann/json.hpp"),
    CompiledIn("tomlplusplus", "MIT", "headers", "/usr/include/toml++/toml.h"),
    CompiledIn("xxhash", "BSD-2-Clause", "headers", "/usr/include/xxhash.h"),
    CompiledIn("marked", "MIT", "embedded in recurve-server, for its page", "/usr/share/javascript/marked/marked.min.js",
               b"marked - a markdown parser"),
    CompiledIn("xgrammar", "Apache-2.0", "compiled into recurve-server", marker=b"xgrammar"),
    CompiledIn("picojson", "BSD-2-Clause", "headers in the package of xgrammar", marker=b"xgrammar"),
    CompiledIn("dlpack", "Apache-2.0", "headers in the package of xgrammar", marker=b"xgrammar"),
    CompiledIn("cuda-cudart", "NOASSERTION", "linked statically", marker=b"cudaErrorInvalidValue"),
]


def xgrammar_package():
    """Its version and SHA-256."""
    wanted = (pathlib.Path(__file__).parent / "xgrammar.txt").read_text()
    return re.search(r"^xgrammar==(\S+) --hash=sha256:(\w+)$", wanted, re.M).groups()


def compiled_in(library):
    """Its SPDX package."""
    purl, version, more = None, None, {}
    if library.file:
        owner = said("dpkg-query", "-S", library.file).partition(": ")[0]
        package, version, architecture = said("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}", owner).split("\t")
        purl = f"pkg:deb/{distribution()}/{package}@{version.replace('+', '%2B')}?arch={architecture}"
    elif library.name == "xgrammar":
        version, checksum = xgrammar_package()
        purl = f"pkg:pypi/xgrammar@{version}"
        more["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    if version:
        more["versionInfo"] = version
    if purl:
        more["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    return {"SPDXID": spdx_id("Compiled", library.name), "name": library.name, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": library.licence, "licenseDeclared": library.licence,
            "copyrightText": "NOASSERTION", "sourceInfo": library.how, **more}


def all_compiled_in(tree):
    """The SPDX packages of libraries that the tree's programs have in themselves."""
    programs = [path.read_bytes() for path in tree.glob("bin/*")]
    return [compiled_in(library) for library in COMPILED_IN
            if library.marker is None or any(library.marker in program for program in programs)]


def document(tree, version, created):
    """The SPDX document, as a dict."""
    vendor = distribution()
    own = spdx_id("Package", "recurve")
    packages = {own: {
        "SPDXID": own, "name": "recurve", "versionInfo": version, "downloadLocation": "NOASSERTION",
        "filesAnalyzed": True, "licenseInfoFromFiles": ["NOASSERTION"], "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION"}}
    files, relations = [], [("SPDXRef-DOCUMENT", "DESCRIBES", own)]
    found_in = debian_packages([path.name for path in tree.glob("lib/*")])
    for path in sorted([*tree.glob("bin/*"), *tree.glob("lib/*")]):
        name = str(path.relative_to(tree))
        content = path.read_bytes()
        file = spdx_id("File", name)
        files.append({
            "SPDXID": file, "fileName": f"./{name}", "copyrightText": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
            "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(content).hexdigest()},
                          {"algorithm": "SHA256",
                           "checksumValue": hashlib.sha256(content).hexdigest()}]})
        relations.append((own, "CONTAINS", file))
        if path.parent.name != "lib":
            continue
        if path.name not in found_in:
            sys.exit(f"sbom.py: no package of this machine has {path.name}")
        debian_name, debian_version, architecture, source = found_in[path.name]
        package = spdx_id("Package", debian_name)
        packages[package] = {
            "SPDXID": package, "name": debian_name, "versionInfo": debian_version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", "sourceInfo": f"built from the source package {source}",
            "supplier": f"Organization: {vendor.capitalize()}",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                "referenceLocator":
                    f"pkg:deb/{vendor}/{debian_name}@{debian_version.replace('+', '%2B')}"
                    f"?arch={architecture}"}]}
        relations.append((own, "DEPENDS_ON", package))
        relations.append((file, "GENERATED_FROM", package))
    for package in all_compiled_in(tree):
        packages[package["SPDXID"]] = package
        relations.append((own, "DEPENDS_ON", package["SPDXID"]))
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    packages[own]["packageVerificationCode"] = {
        "packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()}
    what = hashlib.sha256("".join(file["checksums"][1]["checksumValue"]
                                  for file in files).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"recurve-{version}", "documentNamespace": f"https://spdx.invalid/recurve/{what}",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(created, datetime.timezone.utc)
                .strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: recurve-sbom"]},
        "packages": list(packages.values()), "files": files,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in dict.fromkeys(relations)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--created", type=int,
                        default=int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    arguments = parser.parse_args()
    json.dump(document(arguments.tree, arguments.version, arguments.created), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
