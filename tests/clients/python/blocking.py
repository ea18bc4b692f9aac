"""An object of the asynchronous client in the shape of the synchronous one, for tests of both."""

import inspect

import recurve

_WRAPPED = (recurve.AsyncClient, recurve.AsyncSession, recurve.AsyncStream)


class Blocking:
    """Whatever is called is called in the event loop, and awaited where that is needed."""

    def __init__(self, runner, wrapped):
        self._runner = runner
        self._wrapped = wrapped

    def __getattr__(self, name):
        attribute = getattr(self._wrapped, name)
        if not callable(attribute):
            return attribute
        return lambda *given, **named: self._run(attribute, *given, **named)

    def _run(self, function, *given, **named):
        async def call():
            result = function(*given, **named)
            return await result if inspect.isawaitable(result) else result

        result = self._runner.run(call())
        return Blocking(self._runner, result) if isinstance(result, _WRAPPED) else result

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._run(self._wrapped.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self):
        self._run(self._wrapped.__aenter__)
        return self

    def __exit__(self, *reason):
        self._run(self._wrapped.__aexit__, *reason)
