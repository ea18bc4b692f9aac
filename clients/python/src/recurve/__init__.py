"""The client of Recurve, an inference server for recurrent language models.

    import recurve

    client = recurve.Client("127.0.0.1:50051")
    with client.session("story") as story:
        for chunk in story.generate("Once upon a time", max_tokens=100, stream=True):
            print(chunk.text, end="", flush=True)

`AsyncClient` has the same calls, to be awaited.
"""

from recurve._async.client import AsyncClient
from recurve._async.session import AsyncSession
from recurve._async.stream import AsyncStream
from recurve._channel import Tls
from recurve._errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RecurveError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnreachableError,
)
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
from recurve._retry import Retry
from recurve._sync.client import Client
from recurve._sync.session import Session
from recurve._sync.stream import Stream
from recurve._types import (
    Candidate,
    ChatOptions,
    Choice,
    Chunk,
    Embeddings,
    EmbedOptions,
    FinishReason,
    GenerateOptions,
    Generation,
    Health,
    Message,
    Messages,
    OnProgress,
    Prompt,
    PromptInfo,
    Score,
    ScoreOptions,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallPart,
    Usage,
)

__all__ = [
    "Adapter",
    "AbortedError",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "CancelledError",
    "Candidate",
    "ChatOptions",
    "Choice",
    "Chunk",
    "Client",
    "DataLossError",
    "DeadlineExceededError",
    "EmbedOptions",
    "Embeddings",
    "FailedPreconditionError",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "Health",
    "InitialState",
    "InternalError",
    "InvalidArgumentError",
    "Limits",
    "Load",
    "Mark",
    "Message",
    "Messages",
    "ModelInfo",
    "Models",
    "NotFoundError",
    "OnProgress",
    "OpInfo",
    "Pages",
    "PermissionDeniedError",
    "Prefixes",
    "Prompt",
    "PromptInfo",
    "RecurveError",
    "ResourceExhaustedError",
    "Retry",
    "Score",
    "ScoreOptions",
    "ServerInfo",
    "Session",
    "SessionCounts",
    "SessionInfo",
    "Slots",
    "Stream",
    "Tls",
    "TokenLogprob",
    "Tokens",
    "ToolCall",
    "ToolCallPart",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnreachableError",
    "Usage",
]
