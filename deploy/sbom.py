"""What an install tree is made of, as SPDX 2.3 in JSON: the program, each library in lib/ with its
checksum, and the Debian package that it was copied from on this machine.

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


def grammar_library(tree):
    """The package that structured output is compiled from; None where the server has none."""
    server = tree / "bin" / "recurve-server"
    if not server.exists() or b"xgrammar" not in server.read_bytes():
        return None
    wanted = (pathlib.Path(__file__).parent / "xgrammar.txt").read_text()
    name, version, checksum = re.search(r"^(\w+)==(\S+) --hash=sha256:(\w+)$", wanted, re.M).groups()
    return {
        "SPDXID": spdx_id("Package", name), "name": name, "versionInfo": version,
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION", "sourceInfo": "compiled into recurve-server",
        "checksums": [{"algorithm": "SHA256", "checksumValue": checksum}],
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:pypi/{name}@{version}"}]}


def page_library(tree):
    """The package of the page's Markdown library; None where the server has none."""
    server = tree / "bin" / "recurve-server"
    if not server.exists() or b"marked - a markdown parser" not in server.read_bytes():
        return None
    version = said("dpkg-query", "-W", "-f", "${Version}", "libjs-marked")
    vendor = distribution()
    return {
        "SPDXID": spdx_id("Package", "libjs-marked"), "name": "libjs-marked", "versionInfo": version,
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
        "licenseConcluded": "MIT", "licenseDeclared": "MIT",
        "copyrightText": "NOASSERTION", "sourceInfo": "embedded in recurve-server, for its page",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:deb/{vendor}/libjs-marked@{version.replace('+', '%2B')}?arch=all"}]}


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
    for package in filter(None, (grammar_library(tree), page_library(tree))):
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
