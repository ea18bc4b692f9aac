"""The calls of the protocol: where they go, what goes in and out, and which may be made twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from recurve.v1 import control_pb2 as control
from recurve.v1 import inference_pb2 as inference
from recurve.v1 import sessions_pb2 as sessions


class _Serialisable(Protocol):
    def SerializeToString(self) -> bytes: ...


Q = TypeVar("Q", bound=_Serialisable)
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Rpc(Generic[Q, R]):
    path: str
    request: type[Q]
    response: type[R]
    # Made twice, where a connection was lost, it does what it does once.
    repeatable: bool = False


_INFERENCE = "/recurve.v1.Inference/"
_SESSIONS = "/recurve.v1.Sessions/"
_CONTROL = "/recurve.v1.Control/"
_HEALTH = "/grpc.health.v1.Health/"

# Not repeatable with a session, which may have absorbed the prompt: see the streams.
GENERATE = Rpc(
    _INFERENCE + "Generate", inference.GenerateRequest, inference.GenerateResponse, repeatable=True
)
SCORE = Rpc(_INFERENCE + "Score", inference.ScoreRequest, inference.ScoreResponse, repeatable=True)
EMBED = Rpc(_INFERENCE + "Embed", inference.EmbedRequest, inference.EmbedResponse, repeatable=True)
TOKENIZE = Rpc(
    _INFERENCE + "Tokenize", inference.TokenizeRequest, inference.TokenizeResponse, repeatable=True
)
DETOKENIZE = Rpc(
    _INFERENCE + "Detokenize",
    inference.DetokenizeRequest,
    inference.DetokenizeResponse,
    repeatable=True,
)
ABORT = Rpc(_INFERENCE + "Abort", inference.AbortRequest, inference.AbortResponse)

# A name in use is no error of a retried open: the first attempt may have opened it.
OPEN = Rpc(_SESSIONS + "Open", sessions.OpenSessionRequest, sessions.Session, repeatable=True)
GET = Rpc(_SESSIONS + "Get", sessions.GetSessionRequest, sessions.Session, repeatable=True)
LIST = Rpc(
    _SESSIONS + "List", sessions.ListSessionsRequest, sessions.ListSessionsResponse, repeatable=True
)
# A missing session is no error of a close.
CLOSE = Rpc(
    _SESSIONS + "Close",
    sessions.CloseSessionRequest,
    sessions.CloseSessionResponse,
    repeatable=True,
)
FORK = Rpc(_SESSIONS + "Fork", sessions.ForkSessionRequest, sessions.Session)
MARK = Rpc(_SESSIONS + "Mark", sessions.MarkSessionRequest, sessions.Session)
UNMARK = Rpc(_SESSIONS + "Unmark", sessions.UnmarkSessionRequest, sessions.Session)
REWIND = Rpc(_SESSIONS + "Rewind", sessions.RewindSessionRequest, sessions.Session)
# A session that is not in doubt any more stays as it is.
ACCEPT = Rpc(_SESSIONS + "Accept", sessions.AcceptSessionRequest, sessions.Session, repeatable=True)

# The session that is exported must not change in between: see AsyncSession.export.
EXPORT = Rpc(_SESSIONS + "Export", sessions.ExportRequest, sessions.StateChunk, repeatable=True)
IMPORT = Rpc(_SESSIONS + "Import", sessions.ImportRequest, sessions.Session)

MODEL_INFO = Rpc(
    _CONTROL + "GetModelInfo", control.GetModelInfoRequest, control.ModelInfo, repeatable=True
)
SERVER_INFO = Rpc(
    _CONTROL + "GetServerInfo", control.GetServerInfoRequest, control.ServerInfo, repeatable=True
)
LIST_MODELS = Rpc(
    _CONTROL + "ListModels", control.ListModelsRequest, control.ListModelsResponse, repeatable=True
)
LOAD_MODEL = Rpc(_CONTROL + "LoadModel", control.LoadModelRequest, control.ModelInfo)
UNLOAD_MODEL = Rpc(
    _CONTROL + "UnloadModel", control.UnloadModelRequest, control.UnloadModelResponse
)
LOAD = Rpc(_CONTROL + "GetLoad", control.GetLoadRequest, control.Load, repeatable=True)
DRAIN = Rpc(_CONTROL + "Drain", control.DrainRequest, control.DrainResponse)

# grpc.health.v1 has a string as field 1 of its request and an enumeration as field 1 of its
# response, which on the wire are exactly these two well-known types.
HEALTH = Rpc(_HEALTH + "Check", StringValue, Int32Value, repeatable=True)
WATCH_HEALTH = Rpc(_HEALTH + "Watch", StringValue, Int32Value)
