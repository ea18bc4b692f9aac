"""Asking for answers: of the model alone, or of a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal, overload

from recurve._async.stream import AsyncStream
from recurve._requests import Asked, chat_request, generate_request
from recurve._types import ChatOptions, GenerateOptions, Generation, Messages, Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Generates(ABC):
    @abstractmethod
    def _begin(self, asked: Asked, streamed: bool) -> AsyncStream:
        """Sends the request. streamed: chunks reach the caller as they come, so that an answer that has
        begun cannot be asked for again."""

    @property
    @abstractmethod
    def _session_name(self) -> str:
        """Empty: none."""

    @overload
    def generate(
        self,
        prompt: Prompt = "",
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, Generation]: ...

    @overload
    def generate(
        self, prompt: Prompt = "", *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> AsyncStream: ...

    def generate(
        self, prompt: Prompt = "", *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Coroutine[Any, Any, Generation] | AsyncStream:
        """The answer to a text or to token ids; GenerateOptions lists what else may be given.

        Await it, but not a stream.

        stream=True: streamed, the same as `stream`. A session continues from its state; there the
        prompt may be omitted to continue a cut answer.

        Raises InvalidArgumentError for what the server refuses, NotFoundError for an unknown
        session, FailedPreconditionError for one that serves another request, AlreadyExistsError for
        a request_id in use, ResourceExhaustedError where the server is overloaded and `Retry` has
        not helped, DeadlineExceededError at the timeout, CancelledError after an abort,
        UnavailableError and UnreachableError where no server serves.
        """
        answer = self._begin(generate_request(prompt, self._session_name, options), stream)
        return answer if stream else _whole(answer)

    def stream(self, prompt: Prompt = "", **options: Unpack[GenerateOptions]) -> AsyncStream:
        """As `generate`, the answer as it comes."""
        return self._begin(generate_request(prompt, self._session_name, options), True)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Generation]: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> AsyncStream: ...

    def chat(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Generation] | AsyncStream:
        """The answer to a conversation, which the model's chat template writes.

        Await it, but not a stream.

        A session that has absorbed something is sent the new messages only. Raises what `generate`
        raises; InvalidArgumentError too where the model has no template, or that refuses the
        messages.
        """
        answer = self._begin(chat_request(messages, self._session_name, options), stream)
        return answer if stream else _whole(answer)


async def _whole(answer: AsyncStream) -> Generation:
    async with answer:
        return await answer.result()
