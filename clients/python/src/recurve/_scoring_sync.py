"""Scores of texts, which go out as they are scored."""

from __future__ import annotations

from recurve import _rpcs as rpcs
from recurve._answers import ScoreAnswer
from recurve._calls_sync import RepeatedCall, Responses
from recurve._requests import ScorePieces, ScoreText
from recurve._retry import Attempts, Retry
from recurve._sync.connection import Connection, parser
from recurve._types import Score, ScoreOptions
from recurve.v1 import inference_pb2 as v1

Text = ScoreText


class Scorer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def score(self, text: Text, options: ScoreOptions) -> Score:
        return Scoring(self._connection, ScorePieces(text, options)).result()

    def close(self) -> None:
        """The connection is the client's."""


class Scoring:
    """A running score."""

    def __init__(self, connection: Connection, pieces: ScorePieces) -> None:
        call = connection.channel.stream_stream(
            rpcs.SCORE.path, rpcs.SCORE.request.SerializeToString, parser(rpcs.SCORE.response)
        )

        def begin(timeout: float | None) -> Responses[v1.ScoreResponse]:
            return call(iter(pieces), timeout=timeout, metadata=connection.metadata(""))

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
