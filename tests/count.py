"""Adds up test results: JUnit files that ctest and pytest wrote, and named single checks.

    tests/count.py FILE.xml... [--check NAME=STATUS]...

STATUS is an exit status. Prints the five tests that took longest and what failed, with what it said
of it, then the line `N passed, N failed, N skipped`; exits with 1 if anything failed. A ctest
program that runs GoogleTest counts as its single tests.
"""

import argparse
import re
import sys
import xml.etree.ElementTree


def gtest_counts(output):
    """(passed, failed, skipped) that a GoogleTest program printed; None if it is no such program."""
    found = {
        word: re.search(rf"^\[  {word} \] (\d+) test", output, re.M)
        for word in ("PASSED ", "FAILED ", "SKIPPED")
    }
    if found["PASSED "] is None and found["FAILED "] is None:
        return None
    return [int(match[1]) if match else 0 for match in found.values()]


def cases(path):
    return list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))


def name_of(path, case):
    return f"{path}: {case.get('classname', '')} {case.get('name', '')}"


def counts(path, case):
    """-> name, passed, failed, skipped."""
    bad = case.find("failure") is not None or case.find("error") is not None
    skipped = case.find("skipped") is not None or case.get("status") == "notrun"
    output = case.findtext("system-out") or ""
    passed, failed, left_out = gtest_counts(output) or (not bad and not skipped, bad, skipped)
    return name_of(path, case), int(passed), max(int(failed), int(bad)), int(left_out)


def times(path, case):
    """-> (seconds, name) of each test of a GoogleTest program, or of the whole of another."""
    output = case.findtext("system-out") or ""
    own = re.findall(r"^\[ .*(?:OK|FAILED) \] ([^\s,]+).* \((\d+) ms\)$", output, re.M)
    if not own:
        return [(float(case.get("time") or 0), name_of(path, case))]
    return [(int(ms) / 1000, f"{path}: {name}") for name, ms in own]


# The first line of what went wrong, and how many lines belong to it.
REASONS = {
    r": Failure$": 8,  # GoogleTest's
    r"^(E  |>  )": 1,  # pytest's
    r"^\[  FAILED  \] \S+ ": 1,
    r"^FAILED ": 1,
    r"Sanitizer: |: runtime error: ": 12,
    r"terminate called|Segmentation fault": 3,
}
MOST_LINES = 40


def reasons(case):
    """The lines of a failed case's output that say why; its last lines where none are known to."""
    lines = (case.findtext("system-out") or "").splitlines()
    shown = set()
    for at, line in enumerate(lines):
        for pattern, count in REASONS.items():
            if re.search(pattern, line):
                shown.update(range(at, min(at + count, len(lines))))
    found = [lines[at] for at in sorted(shown)] or lines[-15:]
    left_out = len(found) - MOST_LINES
    return found[:MOST_LINES] + ([f"... and {left_out} lines more"] if left_out > 0 else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--check", action="append", default=[])
    args = parser.parse_args()
    found = [(path, case) for path in args.files for case in cases(path)]
    for seconds, name in sorted((t for each in found for t in times(*each)), reverse=True)[:5]:
        print(f"{seconds:6.1f} s  {name}")
    rows = [counts(*each) for each in found]
    for (_, case), (name, _, failed, _) in zip(found, rows):
        if failed:
            why = case.find("failure")
            said = "" if why is None else (why.get("message") or "").splitlines()[:1]
            print(f"\n-- {name}, {float(case.get('time') or 0):.0f} s: {' '.join(said)}")
            print("\n".join(reasons(case)) + "\n")
    for check in args.check:
        name, status = check.rsplit("=", 1)
        rows.append((name, int(status == "0"), int(status != "0"), 0))
    for name, _, failed, _ in rows:
        if failed:
            print(f"FAILED {name}")
    passed, failed, skipped = (sum(row[i] for row in rows) for i in (1, 2, 3))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
