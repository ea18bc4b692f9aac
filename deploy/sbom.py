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


def debian_package(library):
    """(name, version, architecture, source) of the package that has a library of this file name;
    None where there is none."""
    for folder in LIBRARY_FOLDERS:
        path = pathlib.Path(folder, library)
        if not path.exists():
            continue
        for candidate in (path.resolve(), path):
            # dpkg knows some files by the path from before /lib was /usr/lib.
            for name in (str(candidate), str(candidate).removeprefix("/usr")):
                owner = said("dpkg-query", "-S", name)
                if owner:
                    package = owner.splitlines()[0].rsplit(": ", 1)[0]
                    return said("dpkg-query", "-W", "-f",
                                "${Package}\t${Version}\t${Architecture}\t${source:Package}",
                                package).split("\t")
    return None


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


def document(tree, version, created):
    """The SPDX document, as a dict."""
    vendor = distribution()
    own = spdx_id("Package", "recurve")
    packages = {own: {
        "SPDXID": own, "name": "recurve", "versionInfo": version, "downloadLocation": "NOASSERTION",
        "filesAnalyzed": True, "licenseInfoFromFiles": ["NOASSERTION"], "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION"}}
    files, relations = [], [("SPDXRef-DOCUMENT", "DESCRIBES", own)]
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
        found = debian_package(path.name) if path.parent.name == "lib" else None
        if found is None:
            if path.parent.name == "lib":
                sys.exit(f"sbom.py: no package of this machine has {path.name}")
            continue
        debian_name, debian_version, architecture, source = found
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
    if grammars := grammar_library(tree):
        packages[grammars["SPDXID"]] = grammars
        relations.append((own, "DEPENDS_ON", grammars["SPDXID"]))
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
