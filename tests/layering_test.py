"""Fails when a source file includes a folder its own folder may not know, or two define one name.

    tests/layering_test.py [ROOT]

ALLOWED, read from top to bottom, is the order of the build.
"""

import pathlib
import re
import sys

ALLOWED = {  # folder: the folders whose headers it may include besides its own
    "kernels/ops": {"kernels/tensor.h"},
    "kernels/formats": {"kernels"},
    "kernels/reference": {"kernels", "kernels/ops"},
    "kernels/cpu": {"kernels", "kernels/formats", "kernels/ops", "kernels/reference"},
    "kernels/cuda": {"kernels", "kernels/formats", "kernels/ops", "kernels/reference"},
    "kernels": {"kernels/formats", "kernels/ops"},
    "model": {"kernels", "kernels/ops"},
    "server/text": set(),
    "server/observe": {"server/request/end_reason.h"},
    "server/scheduler": {"server/identity"},
    "server/constraint": {"server/text/chat/value_types.h", "server/text/cut.h"},
    "server/sampling": {"kernels/check.h", "server/constraint/constraint.h"},
    "server/identity": set(),
    "server/object_store": {"server/identity"},
    "server/state": {"server/request/state_transfer.h", "kernels/check.h", "model/state/state_image.h", "model/state/state_layout.h"},
    "server/storage": {"server/request/end_reason.h", "server/state"},
    "server/request": {"model/adapters/adapter.h", "server/identity", "server/sampling", "server/text/cut.h"},
    "server/session": {"model", "kernels", "server/identity", "server/request", "server/sampling", "server/state",
                       "server/storage"},
    "server/prefix": {"model", "kernels", "server/identity", "server/request", "server/session", "server/storage"},
    "server/prefix_store": {"model", "kernels", "server/identity", "server/object_store", "server/prefix", "server/request", "server/state"},
    "server/engine": {"model", "kernels", "kernels/ops", "server/constraint/guide.h", "server/identity", "server/prefix", "server/request",
                      "server/scheduler", "server/session", "server/sampling", "server/observe", "server/state"},
    "server/serving": {"server/constraint", "server/engine/recorded_answer.h", "server/engine/request_digest.h", "server/identity", "server/object_store", "server/observe", "server/request", "server/sampling", "server/text"},
    "server/crypto": {"server/identity", "server/observe", "server/storage"},
    "server/net": {"server/identity/file_stamp.h", "server/identity/identity.h", "server/observe", "server/request/byte_budget.h"},
    "server/rpc": {"proto", "server/constraint/constraint.h", "server/identity", "server/net", "server/request", "server/serving", "server/sampling", "server/text",
                   "server/observe"},
    "server/kserve": {"proto", "server/identity", "server/observe", "server/request", "server/serving", "server/rpc", "server/sampling",
                      "server/text"},
    "server/http": {"server/identity", "server/net", "server/observe", "server/request", "server/serving", "server/text"},
    "server/http/openai": {"server/http", "server/constraint/constraint.h", "server/identity", "server/request", "server/serving",
                           "server/sampling", "server/text"},
    "server/http/anthropic": {"server/http", "server/identity", "server/request", "server/serving", "server/text"},
    "server/startup": {"model", "kernels", "server/command_line", "server/constraint", "server/crypto", "server/engine", "server/identity", "server/net", "server/object_store", "server/observe",
                       "server/prefix", "server/prefix_store", "server/request", "server/serving", "server/session", "server/state", "server/storage", "server/text"},
    "server": {"*"},  # the composition root
    "server/command_line": set(),
    "clients": {"proto", "server/command_line", "server/object_store", "server/startup/flag_values.h", "server/startup/usage.h", "server/identity", "server/startup/version.h"},
    "tests": {"*"},
}
# The one file that sees the tables of all backends.
SEES_BACKENDS = "kernels/backend.cc"
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def home(path):
    """The longest folder of ALLOWED that holds this file; generated headers belong to proto."""
    if path.startswith(("recurve/v1/", "kserve/v2/")):
        return "proto"
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default=None)


def violations(root):
    for source in sorted(root.rglob("*")):
        name = source.relative_to(root).as_posix()
        own = home(name)
        if source.suffix not in SUFFIXES or own is None or name.startswith("build/"):
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            include = re.match(r'#include [<"]([^">]+/[^">]+)[">]', line)
            target = home(include[1]) if include else None
            if target is None or target == own or "*" in ALLOWED[own]:
                continue
            if name == SEES_BACKENDS and target.startswith("kernels/"):
                continue
            if target not in ALLOWED[own] and include[1] not in ALLOWED[own]:
                yield f"{name}:{number}: {own} may not include {target} ({include[1]})"


def uses_of_grpc(root):
    """gRPC and protobuf are known to rpc, kserve, the clients and the tests only."""
    for source in sorted(root.rglob("*")):
        name = source.relative_to(root).as_posix()
        own = home(name)
        if source.suffix not in SUFFIXES or own in {None, "server/rpc", "server/kserve", "clients", "tests"}:
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            if re.match(r'#include [<"](grpc|google/protobuf|recurve/v1|kserve/v2)', line):
                yield f"{name}:{number}: {own} may not include gRPC or protobuf"


def questions_to_backends(root):
    """What is done together is the backend's to say (kernels/fusion.h): models never ask it."""
    for source in sorted((root / "model").rglob("*")):
        if source.suffix not in SUFFIXES:
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            if re.search(r"\.(takes_\w+|defers_norm|rounds|convolves|most_rows_of_deferred_norm)\b", line):
                name = source.relative_to(root).as_posix()
                yield f"{name}:{number}: model asks a kernel what it can; kernels/fusion.h answers"


# What is precompiled for the tests here is not where they are built without: on a machine with a GPU.
PRECOMPILED = {r"\bfmt::": "<fmt/", r"\b(?:EXPECT|ASSERT)_THAT\(|\bHasSubstr\(": "<gmock/gmock.h>"}
RETURNS = r"(?!return|else|throw|using)[\w[][\w:<>,&*\[\] ]*[\w>&*\]] [&*]*"
HELPER = re.compile(f"^{RETURNS}([a-z]+_\\w+)\\(", re.M)  # no word of many meanings
DEFINED = re.compile(f"^ *{RETURNS}(\\w+)\\(", re.M)


def reached(root, name, seen):
    """The texts of a file and of all of the project's that it includes, by name, in `seen`."""
    if name not in seen and (root / name).is_file():
        seen[name] = (root / name).read_text()
        for include in re.findall(r'#include "([^"]+)"', seen[name]):
            reached(root, include, seen)
    return seen


def missing_includes(root):
    """A test includes what it uses of precompiled headers and of tests/support, itself or through what it includes:
    another build may not compile the same files in the same unit."""
    helpers = {}
    for header in sorted((root / "tests/support").rglob("*.h")):
        for helper in set(re.findall(HELPER, header.read_text())):
            helpers.setdefault(helper, set()).add(header.relative_to(root).as_posix())
    for source in sorted((root / "tests").rglob("*_test.cc")):
        name = source.relative_to(root).as_posix()
        texts = reached(root, name, {})
        text = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', "", source.read_text())
        for used, header in PRECOMPILED.items():
            if re.search(used, text) and not any(f"#include {header}" in other for other in texts.values()):
                yield f"{name}: nothing it includes has {header.rstrip('/')}"
        defined = {helper for other in texts.values() for helper in re.findall(DEFINED, other)}
        for helper in set(re.findall(r"(?<![\w.:>~])([a-z]\w+)\(", text)) & helpers.keys() - defined:
            yield f"{name}: nothing it includes has {helper}() of {' or '.join(sorted(helpers[helper]))}"


def types_of(source):
    """The types that a source defines in a named namespace, as namespace::name."""
    namespaces = []
    for line in source.read_text().splitlines():
        if opened := re.match(r"namespace( [\w:]+)? \{", line):
            namespaces.append((opened[1] or "").strip())
        elif re.match(r"\}\s*// namespace", line) and namespaces:
            namespaces.pop()
        defined = re.match(r"(?:template <.*> )?(?:class|struct|enum(?: class)?|union) (\w+)(?!\w|::|;)", line)
        if defined and namespaces and all(namespaces):
            yield "::".join([*namespaces, defined[1]])


def types_of_one_name(root):
    """Two types of one name would be one type to the linker, which takes either's functions."""
    homes = {}
    for source in sorted(root.rglob("*")):
        name = source.relative_to(root).as_posix()
        if source.suffix not in SUFFIXES or home(name) is None:
            continue
        for defined in types_of(source):
            first = homes.setdefault(defined, name)
            if first != name:
                yield f"{name}: {defined} is the name of another type, in {first}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = [*violations(root), *uses_of_grpc(root), *questions_to_backends(root), *types_of_one_name(root),
             *missing_includes(root)]
    print("\n".join(found) or "layering: every include keeps to its folder's place, every type has its name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
