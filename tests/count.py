"""Adds up test results: JUnit files that ctest and pytest wrote, and named single checks.

    tests/count.py FILE.xml... [--check NAME=STATUS]...

STATUS is an exit status. Prints the five tests that took longest and what failed, then the line `N
passed, N failed, N skipped`; exits with 1 if anything failed. A ctest program that runs GoogleTest
counts as its single tests.
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--check", action="append", default=[])
    args = parser.parse_args()
    found = [(path, case) for path in args.files for case in cases(path)]
    for seconds, name in sorted((t for each in found for t in times(*each)), reverse=True)[:5]:
        print(f"{seconds:6.1f} s  {name}")
    rows = [counts(*each) for each in found]
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
