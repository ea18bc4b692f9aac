"""The server and its models: what they are, and what an administrator does to them."""

from __future__ import annotations

from collections.abc import Mapping

from recurve import _answers as answers
from recurve import _rpcs as rpcs
from recurve._async.connection import Connection
from recurve._info import Load, ModelInfo, Models, ServerInfo
from recurve.v1 import control_pb2 as control


class Controls:
    """What a client does without a prompt or a session."""

    _connection: Connection

    async def model_info(self, model: str = "", *, timeout: float | None = None) -> ModelInfo:
        """The model of this name, or the server's first. UnavailableError while it is loaded."""
        request = control.GetModelInfoRequest(model=model)
        return answers.model_info(
            await self._connection.unary(rpcs.MODEL_INFO, request, timeout=timeout)
        )

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The server, in whatever state it is."""
        request = control.GetServerInfoRequest()
        return answers.server_info(
            await self._connection.unary(rpcs.SERVER_INFO, request, timeout=timeout)
        )

    async def load(self, *, timeout: float | None = None) -> Load:
        """What the server is doing."""
        request = control.GetLoadRequest()
        return answers.load(await self._connection.unary(rpcs.LOAD, request, timeout=timeout))

    async def drain(self, deadline: float | None = None, *, timeout: float | None = None) -> int:
        """Stops the server after its running requests; returns their number at once.

        deadline: seconds that they have. Default: the server's. A second call may only shorten it.
        """
        request = control.DrainRequest(deadline_seconds=deadline)
        answer = await self._connection.unary(rpcs.DRAIN, request, timeout=timeout)
        return answer.requests_under_way

    async def list_models(self, *, timeout: float | None = None) -> Models:
        """The models that serve, and those that are being loaded or unloaded."""
        request = control.ListModelsRequest()
        return answers.models(
            await self._connection.unary(rpcs.LIST_MODELS, request, timeout=timeout)
        )

    async def load_model(
        self,
        name: str,
        path: str = "",
        *,
        flags: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> ModelInfo:
        """Loads a model of a server with --model-root, for administrators; returns when it serves.

        name: 1 to 128 of the characters [A-Za-z0-9._-], by which requests choose it.
        path: directory of the checkpoint below --model-root. Default: the name.
        flags: what the model has instead of a flag of the server, by the keys of a file of --models,
            e.g. {"slots": "4", "weights": "int8"}.

        The server continues when the timeout passes. Raises AlreadyExistsError for a name in use,
        NotFoundError where there is no such directory, InvalidArgumentError for a wrong flag or a
        path out of --model-root, FailedPreconditionError for a checkpoint that cannot be loaded or
        does not fit into memory, UnimplementedError without --model-root, PermissionDeniedError
        where the key is no administrator's or the address not that of --admin.
        """
        request = control.LoadModelRequest(name=name, path=path, flags=flags)
        return answers.model_info(
            await self._connection.unary(rpcs.LOAD_MODEL, request, timeout=timeout)
        )

    async def unload_model(
        self, name: str, *, drain_seconds: float | None = None, timeout: float | None = None
    ) -> None:
        """Unloads a model, but for the first; returns when its memory is free.

        drain_seconds: for its requests in progress, [0, 86400]; then they get UnavailableError.
            Default: the server's --drain-seconds.

        Raises NotFoundError for an unknown model, FailedPreconditionError for the first, and
        UnimplementedError and PermissionDeniedError as `load_model` does.
        """
        request = control.UnloadModelRequest(name=name, drain_seconds=drain_seconds)
        await self._connection.unary(rpcs.UNLOAD_MODEL, request, timeout=timeout)
