"""Prints the sources whose CUDA code differs from that of COMMIT, one a line: those that include,
directly or not, a file of this repository that has changed since, committed or not.

    tests/cuda_sources.py BUILD COMMIT

BUILD is a build folder configured with CUDA, whose compile_commands.json names the sources. All are
printed where what they are compiled with has changed. Includes are looked for in the text, whether or
not a condition leaves them out, so that no source is missed.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What decides how sources are compiled.
COMPILED_WITH = {"CMakeLists.txt", "CMakePresets.json", "deploy/packages.sh", "tests/CMakeLists.txt",
                 "tests/cuda_sources.py"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


@functools.cache
def included(path):
    """All files that `path` includes, directly or not, and itself; also wherever one of that name
    would be found, were it there: a file that came or went is a change."""
    found, waiting = set(), [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        if not file.is_file():
            continue
        for name in INCLUDE.findall(file.read_text()):
            waiting += [(ROOT / name).resolve(), (file.parent / name).resolve()]
    return frozenset(found)


def has_cuda(path):
    """Whether it is compiled by nvcc, or differs where there is CUDA."""
    return any(
        file.is_relative_to(ROOT / "kernels/cuda") or "RECURVE_CUDA" in file.read_text()
        for file in included(path)
        if file.is_file()
    )


def changed_since(commit):
    """Of the working tree, also what git does not know yet."""
    def names(*command):
        return subprocess.run(["git", "-C", ROOT, *command], check=True, text=True,
                              capture_output=True).stdout.splitlines()
    return {*names("diff", "--name-only", "--no-renames", commit),
            *names("ls-files", "--others", "--exclude-standard")}


def main(build, commit):
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    tests = ROOT / "tests"
    sources = sorted({
        path for path in (pathlib.Path(command["file"]).resolve() for command in commands)
        # What the tests of models and engines have of CUDA is a device's name.
        if path.is_relative_to(ROOT / "kernels") or path.is_relative_to(tests / "kernels")
    })
    changed = changed_since(commit)
    if not changed & COMPILED_WITH:
        files = {ROOT / name for name in changed}
        sources = [source for source in sources if included(source) & files]
    for source in sources:
        if has_cuda(source):
            print(source)


if __name__ == "__main__":
    main(*sys.argv[1:])
