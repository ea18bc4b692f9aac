"""From the protocol's answers to what the caller gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from recurve._errors import InternalError
from recurve._info import (
    Adapter,
    InitialState,
    Limits,
    Load,
    Mark,
    ModelInfo,
    Models,
    OpInfo,
    Pages,
    Prefixes,
    ServerInfo,
    SessionCounts,
    SessionInfo,
    Slots,
)
from recurve._types import (
    Candidate,
    Choice,
    Chunk,
    Embeddings,
    FinishReason,
    Generation,
    Health,
    OnProgress,
    PromptInfo,
    Score,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallPart,
    Usage,
)
from recurve.v1 import control_pb2 as control
from recurve.v1 import inference_pb2 as v1
from recurve.v1 import sessions_pb2 as sessions

T = TypeVar("T")


def _plain(kind: type[T], message: Any, **converted: object) -> T:
    """A dataclass from the message whose fields have its names; `converted` where they differ."""
    names = {field.name for field in dataclasses.fields(cast(Any, kind))} - converted.keys()
    return kind(**{name: getattr(message, name) for name in names}, **converted)


def session_info(message: sessions.Session) -> SessionInfo:
    return _plain(
        SessionInfo,
        message,
        pending_token=message.pending_token if message.HasField("pending_token") else None,
        tier=sessions.SessionTier.Name(message.tier).removeprefix("SESSION_TIER_").lower(),
        durability=sessions.Durability.Name(message.durability)
        .removeprefix("DURABILITY_")
        .lower(),
        marks=tuple(_plain(Mark, mark) for mark in message.marks),
    )


def model_info(message: control.ModelInfo) -> ModelInfo:
    return _plain(
        ModelInfo,
        message,
        bos_id=message.bos_id if message.HasField("bos_id") else None,
        eos_ids=tuple(message.eos_ids),
        ops=tuple(_plain(OpInfo, op) for op in message.ops),
        initial_states=tuple(_plain(InitialState, state) for state in message.initial_states),
        adapters=tuple(_plain(Adapter, adapter) for adapter in message.adapters),
    )


def models(message: control.ListModelsResponse) -> Models:
    return Models(
        models=tuple(model_info(model) for model in message.models),
        loading=tuple(message.loading),
        unloading=tuple(message.unloading),
    )


def server_info(message: control.ServerInfo) -> ServerInfo:
    return _plain(
        ServerInfo,
        message,
        state=control.ServerState.Name(message.state).removeprefix("SERVER_STATE_").lower(),
        limits=_plain(Limits, message.limits),
    )


def load(message: control.Load) -> Load:
    return _plain(
        Load,
        message,
        slots=_plain(Slots, message.slots),
        sessions=_plain(SessionCounts, message.sessions),
        prefixes=_plain(Prefixes, message.prefixes),
        pages=_plain(Pages, message.pages) if message.HasField("pages") else None,
    )


def health(status: int) -> Health:
    """From grpc.health.v1's ServingStatus."""
    return "serving" if status == 1 else "not_serving" if status == 2 else "unknown"


def tokens(message: v1.TokenizeResponse) -> Tokens:
    return Tokens(tuple(message.ids), tuple(message.token_bytes))


def embeddings(messages: list[v1.EmbedResponse]) -> Embeddings:
    """From all messages of a call."""
    found = [m.embedding for m in messages if m.HasField("embedding")]
    last = [m.final for m in messages if m.HasField("final")]
    if len(last) != 1:
        raise InternalError("the server ended the embeddings without a last message")
    return Embeddings(
        vectors=tuple(tuple(one.values) for one in found),
        prompt_tokens=tuple(one.prompt_tokens for one in found),
        usage=_plain(Usage, last[0].usage),
    )


def _token_logprobs(messages: Iterable[v1.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        _plain(TokenLogprob, token, top=tuple(_plain(Candidate, other) for other in token.top))
        for token in messages
    )


def begins(message: v1.GenerateResponse) -> bool:
    """Whether an answer has begun with it. What has only been understood may still be refused,
    after some time in the queue."""
    return not message.HasField("prompt")


def always_begins(message: v1.GenerateResponse) -> bool:
    """As `begins`, where nothing may be asked for again once something has come."""
    return True


def never_begins(message: v1.GenerateResponse) -> bool:
    """As `begins`, where an answer may be asked for again until it is whole."""
    return False


class _Gathered:
    """What one choice's chunks have brought."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.calls: list[list[ToolCallPart]] = []  # the parts of each

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(parts[0].id, parts[0].name, "".join(part.arguments for part in parts))
            for parts in self.calls
        )


class Answer:
    """Gathers the messages of one answer."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._on_progress = on_progress
        self._restart()

    def _restart(self) -> None:
        self.prompt: PromptInfo | None = None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._choices: dict[int, _Gathered] = {}
        self._final: v1.GenerateFinal | None = None

    def take(self, message: v1.GenerateResponse) -> Chunk | None:
        """The message's chunk, if it is one."""
        event = message.WhichOneof("event")
        if event == "chunk":
            return self._take_chunk(message.chunk)
        if event == "prompt":
            self._restart()  # the request may have been sent again
            self.prompt = _plain(PromptInfo, message.prompt)
        elif event == "prompt_logprobs":
            self._prompt_logprobs.extend(_token_logprobs(message.prompt_logprobs.tokens))
        elif event == "progress" and self._on_progress is not None and self.prompt is not None:
            self._on_progress(message.progress.absorbed_tokens, self.prompt.prompt_tokens)
        elif event == "final":
            self._final = message.final
        return None

    def _take_chunk(self, message: v1.Chunk) -> Chunk:
        chunk = Chunk(
            message.choice,
            message.text,
            tuple(message.ids),
            _token_logprobs(message.logprobs),
            tuple(_plain(ToolCallPart, part) for part in message.tool_calls),
            message.reasoning,
        )
        gathered = self._choices.setdefault(chunk.choice, _Gathered())
        gathered.texts.append(chunk.text)
        gathered.reasoning.append(chunk.reasoning)
        gathered.ids.extend(chunk.ids)
        gathered.logprobs.extend(chunk.logprobs)
        for part in chunk.tool_calls:
            if part.index == len(gathered.calls):
                gathered.calls.append([])
            gathered.calls[part.index].append(part)
        return chunk

    def generation(self) -> Generation:
        """The whole answer. InternalError where the server ended it without its last message."""
        if self._final is None or self.prompt is None:
            raise InternalError("the server ended the answer without its last message")
        return Generation(
            choices=tuple(
                self._choice(index, final) for index, final in enumerate(self._final.choices)
            ),
            prompt=self.prompt,
            prompt_logprobs=tuple(self._prompt_logprobs),
            usage=_plain(Usage, self._final.usage),
        )

    def _choice(self, index: int, final: v1.GenerateFinal.ChoiceFinal) -> Choice:
        gathered = self._choices.get(index, _Gathered())
        stop = final.WhichOneof("stop")
        reason = v1.FinishReason.Name(final.reason)
        return Choice(
            text="".join(gathered.texts),
            ids=tuple(gathered.ids),
            finish_reason=cast(FinishReason, reason.removeprefix("FINISH_REASON_").lower()),
            stop=getattr(final, stop) if stop else None,
            logprobs=tuple(gathered.logprobs),
            decode_seconds=final.decode_seconds,
            tool_calls=gathered.tool_calls(),
            reasoning="".join(gathered.reasoning),
            reasoning_tokens=final.reasoning_tokens,
        )


class ScoreAnswer:
    """Gathers the messages of one score."""

    def __init__(self) -> None:
        self._tokens: list[TokenLogprob] = []
        self._final: v1.ScoreFinal | None = None

    def take(self, message: v1.ScoreResponse) -> None:
        if message.HasField("progress"):
            self._tokens.extend(_token_logprobs(message.progress.tokens))
        elif message.HasField("final"):
            self._final = message.final

    def score(self) -> Score:
        """The whole. InternalError where the server ended it without its last message."""
        if self._final is None:
            raise InternalError("the server ended the score without its last message")
        return _plain(
            Score, self._final, tokens=tuple(self._tokens), usage=_plain(Usage, self._final.usage)
        )
