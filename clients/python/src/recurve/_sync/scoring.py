"""Scores of texts, which go out as they are scored."""

from __future__ import annotations

from recurve import _rpcs as rpcs
from recurve._answers import ScoreAnswer
from recurve._requests import ScorePieces
from recurve._retry import Attempts, Retry
from recurve._sync.connection import Connection, RepeatedCall
from recurve._types import Score


class Scoring:
    """A running score."""

    def __init__(self, connection: Connection, pieces: ScorePieces) -> None:
        begin = connection.stream_stream(rpcs.SCORE, lambda: iter(pieces))
        policy = connection.retry if pieces.repeatable else Retry(attempts=1)
        attempts = Attempts(policy, pieces.timeout, rpcs.SCORE.repeatable)
        self._pieces = pieces
        self._call = RepeatedCall(connection, begin, attempts)

    def result(self) -> Score:
        """Waits for its end. Raises what the text's iterator raises."""
        answer = ScoreAnswer()
        try:
            for message in self._call:
                answer.take(message)
        except BaseException:
            self._call.cancel()
            if self._pieces.failure is not None:
                raise self._pieces.failure from None
            raise
        return answer.score()

    def cancel(self) -> None:
        """Ends it, from any thread."""
        self._call.cancel()
