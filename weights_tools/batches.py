"""Rows of training text: each walks the stream in segments, so that its state can be carried on."""

import numpy as np


class Rows:
    """Rows spread evenly over a stream of ids that is taken as a ring."""

    def __init__(self, stream, rows, segment, newline, bos, rng):
        self.stream, self.segment, self.bos = stream, segment, bos
        self.starts = paragraph_starts(stream, newline, bos)
        offset = int(rng.integers(len(stream)))
        self.at = offset + np.arange(rows, dtype=np.int64) * len(stream) // rows

    def next(self, fresh):
        """fresh [rows]: which rows leave for the next paragraph's beginning, with BOS before it.

        -> ids [rows, segment + 1]: inputs and, one further, targets; a row's next ids begin with
        the last ones of these.
        """
        length = len(self.stream)
        at = self.at % length
        following = np.searchsorted(self.starts, at, side="right") % len(self.starts)
        begin = np.where(fresh, self.starts[following] - 1, at)
        ids = self.stream[(begin[:, None] + np.arange(self.segment + 1)) % length].astype(np.int64)
        ids[fresh, 0] = self.bos
        self.at = begin + self.segment
        return ids


def paragraph_starts(stream, newline, bos):
    """Indices of the first id after a blank line or after BOS."""
    blank = (stream[:-2] == newline) & (stream[1:-1] == newline)
    after_blank = 2 + np.flatnonzero(blank & (stream[2:] != newline) & (stream[2:] != bos))
    after_bos = 1 + np.flatnonzero(stream[:-1] == bos)
    return np.union1d(after_blank, after_bos)
