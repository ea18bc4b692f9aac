"""How far a long copy has come."""

import sys
import time


class Progress:
    """Counts bytes towards a total. On a terminal one line is rewritten; elsewhere a line comes every
    ten seconds, with the time that remains at this rate. finish() prints the total time."""

    def __init__(self, total, out=None, clock=time.monotonic):
        self.total, self.out, self.clock = total, out or sys.stdout, clock
        self.terminal = self.out.isatty()
        self.done, self.begin = 0, clock()
        self.shown = self.begin

    def __call__(self, count):
        self.done += count
        now = self.clock()
        if now - self.shown >= (0.2 if self.terminal else 10):
            self.shown = now
            self._line(f"{size(self.done)} of {size(self.total)}, {self._rate(now)}, {self._remaining(now)}")

    def finish(self):
        now = self.clock()
        self._line(f"{size(self.done)} in {now - self.begin:.1f} s, {self._rate(now)}")
        if self.terminal:
            print(file=self.out)

    def _rate(self, now):
        return f"{size(self.done / max(now - self.begin, 1e-9))}/s"

    def _remaining(self, now):
        seconds = (now - self.begin) * (self.total - self.done) / max(self.done, 1)
        return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"

    def _line(self, text):
        if self.terminal:
            print(f"\r\033[K{text}", end="", file=self.out, flush=True)
        else:
            print(text, file=self.out, flush=True)


def size(count):
    """Decimal units, as disks and bandwidths have them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
