import io

import pytest

from weights_tools.progress import Progress, size


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(out):
    """1 GB a second for 60 s, in 600 steps."""
    clock = Clock()
    progress = Progress(60e9, out, clock)
    for _ in range(600):
        clock.now += 0.1
        progress(1e8)
    progress.finish()
    return out.getvalue()


def test_few_lines_in_a_file():
    lines = run(io.StringIO()).splitlines()
    assert 4 <= len(lines) <= 7
    assert lines[0].endswith(" of 60.00 GB, 1.00 GB/s, 50 s left") and lines[0].startswith("10.")
    assert lines[-1] == "60.00 GB in 60.0 s, 1.00 GB/s"


def test_one_line_rewritten_on_a_terminal():
    text = run(Terminal())
    assert text.count("\n") == 1 and text.endswith("60.00 GB in 60.0 s, 1.00 GB/s\n")
    assert 200 < text.count("\r") < 400


@pytest.mark.parametrize(
    "count, wanted",
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (5.5e7, "55 MB"), (14.6e9, "14.60 GB")],
)
def test_size(count, wanted):
    assert size(count) == wanted
