"""Converts the caller's arguments to the protocol's requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union, cast

from recurve._types import (
    ChatOptions,
    EmbedOptions,
    GenerateOptions,
    Message,
    Messages,
    OnProgress,
    Prompt,
    ScoreOptions,
)
from recurve.v1 import inference_pb2 as v1
from recurve.v1 import sessions_pb2 as sessions_v1

_SAMPLING = {field.name for field in v1.SamplingParams.DESCRIPTOR.fields}
_STOP = {field.name for field in v1.StopConditions.DESCRIPTOR.fields}
_CHAT = {"tools", "variables", "add_generation_prompt", "continue_final_message"}
_PREFIX_MODES = {
    "off": v1.PREFIX_MODE_OFF,
    "use": v1.PREFIX_MODE_USE,
    "use-and-keep": v1.PREFIX_MODE_USE_AND_KEEP,
}
_DURABILITIES = {
    "none": sessions_v1.DURABILITY_NONE,
    "local": sessions_v1.DURABILITY_LOCAL,
    "remote": sessions_v1.DURABILITY_REMOTE,
}
_CONSTRAINTS = {"json_schema", "regex", "grammar", "choice", "structural_tag"}
_POOLINGS = {"last": v1.POOLING_LAST, "mean": v1.POOLING_MEAN}
_KNOWN = GenerateOptions.__optional_keys__

PIECE_BYTES = 64 * 1024
PIECE_IDS = 16 * 1024


def durability_of(value: Any) -> sessions_v1.Durability:
    if value not in _DURABILITIES:
        raise ValueError(f"durability must be one of {', '.join(_DURABILITIES)}, got {value!r}")
    return _DURABILITIES[value]


class Asked(NamedTuple):
    """A request, and what the client itself does for it."""

    request: v1.GenerateRequest
    timeout: float | None  # of the call, in seconds
    on_progress: OnProgress | None


def generate_request(prompt: Prompt, session: str, options: GenerateOptions) -> Asked:
    request = v1.GenerateRequest(session=session)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.ids.ids.extend(listed("a prompt must be a str or token ids", prompt))
    return _asked(request, dict(options))


def listed(wanted: str, value: Any) -> Any:
    """The value; TypeError with what is wanted where it is no sequence of items."""
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Mapping)):
        return value
    raise TypeError(f"{wanted}, got {type(value).__name__}")


def chat_request(messages: Messages, session: str, options: ChatOptions) -> Asked:
    request = v1.GenerateRequest(session=session)
    rest = dict(options)
    fill_messages(request.messages, messages, {key: rest.pop(key) for key in _CHAT & rest.keys()})
    names = ("tool_choice", "parallel_tool_calls", "allowed_tools")
    _set_tool_use(request, *(rest.pop(name, None) for name in names))
    return _asked(request, rest)


def _set_tool_use(request: v1.GenerateRequest, choice: Any, parallel: Any, allowed: Any) -> None:
    if not request.messages.tools_json:
        if choice not in (None, "auto", "none"):
            raise TypeError("tool_choice needs tools")
        if allowed is not None:
            raise TypeError("allowed_tools needs tools")
        return
    choice = "auto" if choice is None else choice
    if not isinstance(choice, str):
        raise TypeError(
            f"tool_choice must be 'auto', 'required', 'none' or a tool's name, got {choice!r}"
        )
    if choice == "none":
        return
    request.tool_use.single = parallel is False
    request.tool_use.required = choice == "required"
    if allowed is not None:
        request.tool_use.allowed.extend(listed("allowed_tools must be a list of names", allowed))
    if choice not in ("auto", "required"):
        request.tool_use.function = choice


def fill_messages(to: v1.Messages, messages: Messages, options: Mapping[str, Any]) -> None:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in listed("messages must be a str or a list of dicts", messages):
        _fill_message(to.messages.add(), message)
    for name, field in (("tools", "tools_json"), ("variables", "variables_json")):
        if options.get(name):
            setattr(to, field, _json(options[name]))
    for name in ("add_generation_prompt", "continue_final_message"):
        if options.get(name) is not None:
            setattr(to, name, options[name])


def _fill_message(to: v1.Messages.Message, message: Message) -> None:
    further = dict(message)
    to.role = further.pop("role", "")
    # A content that is a list of parts is one of the template's own fields.
    if isinstance(further.get("content"), str):
        to.content = further.pop("content")
    if further:
        to.fields_json = _json(further)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _asked(request: v1.GenerateRequest, options: dict[str, Any]) -> Asked:
    timeout, on_progress = options.pop("timeout", None), options.pop("on_progress", None)
    _set_options(request, options)
    request.report_progress = on_progress is not None
    return Asked(request, cast("float | None", timeout), on_progress)


def _set_options(request: v1.GenerateRequest, options: dict[str, Any]) -> None:
    stop = options.pop("stop", None)
    if stop is not None:
        request.stop.stop_strings.extend([stop] if isinstance(stop, str) else stop)
    for name, value in options.items():
        if name not in _KNOWN:
            raise TypeError(f"a request has no option '{name}'")
        if value is None:
            continue
        if name in _CONSTRAINTS:
            _set_constraint(request, name, value)
        else:
            _set(_part_of(request, name), name, value)


def _set_constraint(request: v1.GenerateRequest, form: str, value: Any) -> None:
    given = request.constraint.WhichOneof("form")
    if given is not None:
        raise TypeError(f"a request must have only one of {given} and {form}, got both")
    if form == "choice":
        if isinstance(value, str):
            raise TypeError("choice must be a sequence of texts, got one text")
        request.constraint.choice.texts.extend(value)
    elif form == "json_schema" and value is True:
        request.constraint.json = True
    else:
        setattr(request.constraint, form, value if isinstance(value, str) else _json(value))


def _part_of(request: v1.GenerateRequest, option: str) -> Any:
    if option == "any_whitespace":
        return request.constraint
    if option in _SAMPLING:
        return request.sampling
    return request.stop if option in _STOP else request


def _set(part: Any, name: str, value: Any) -> None:
    if name == "logit_bias":
        part.logit_bias.update(value)
    elif name in ("allowed_token_ids", "stop_token_ids", "prefix_points"):
        getattr(part, name).extend(value)
    elif name == "durability":
        part.durability = durability_of(value)
    elif name == "prefix":
        if value not in _PREFIX_MODES:
            raise ValueError(f"prefix must be one of {', '.join(_PREFIX_MODES)}, got {value!r}")
        part.prefix = _PREFIX_MODES[value]
    else:
        setattr(part, name, value)


ScoreText = Union[str, bytes, Sequence[int], Iterator[Union[str, bytes]]]


class ScorePieces:
    """The messages of a request for a score."""

    def __init__(self, text: ScoreText, options: ScoreOptions) -> None:
        if not isinstance(text, bytes):
            listed("a text to score must be a str, bytes, token ids or an iterable of them", text)
        self._text = text
        rest = cast("dict[str, Any]", dict(options))
        self.timeout: float | None = rest.pop("timeout", None)
        for name in rest:
            if name not in ScoreOptions.__optional_keys__:
                raise TypeError(f"a score has no option '{name}'")
        self._options = v1.ScoreOptions(**rest)
        self.failure: BaseException | None = None  # of the caller's iterator
        # Pieces that were taken from an iterator cannot be had again.
        self.repeatable = isinstance(text, (str, bytes, Sequence))

    def __iter__(self) -> Iterator[v1.ScoreRequest]:
        yield self._first()
        try:
            for part in self._parts():
                yield from _pieces(part)
        except Exception as failure:
            self.failure = failure
            raise

    def _first(self) -> v1.ScoreRequest:
        """The options, with an empty text: the server judges it if nothing follows."""
        first = v1.ScoreRequest(options=self._options)
        if isinstance(self._text, Sequence) and not isinstance(self._text, (str, bytes)):
            first.ids.SetInParent()
        else:
            first.text = b""
        return first

    def _parts(self) -> Iterable[str | bytes | Sequence[int]]:
        whole = isinstance(self._text, (str, bytes, Sequence))
        return cast("Iterable[str | bytes | Sequence[int]]", [self._text] if whole else self._text)


def _pieces(part: str | bytes | Sequence[int]) -> Iterator[v1.ScoreRequest]:
    if not isinstance(part, (str, bytes)):
        for at in range(0, len(part), PIECE_IDS):
            yield v1.ScoreRequest(ids=v1.TokenIds(ids=part[at : at + PIECE_IDS]))
        return
    data = part.encode() if isinstance(part, str) else part
    for at in range(0, len(data), PIECE_BYTES):
        yield v1.ScoreRequest(text=data[at : at + PIECE_BYTES])


def embed_request(
    texts: Prompt | Sequence[Prompt], options: EmbedOptions
) -> tuple[v1.EmbedRequest, float | None]:
    """The request, and the call's timeout in seconds. One text or one list of ids is one input."""
    rest = cast("dict[str, Any]", dict(options))
    timeout = rest.pop("timeout", None)
    pooling = rest.pop("pooling", "last")
    if pooling not in _POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(_POOLINGS)}, got {pooling!r}")
    for name in rest:
        if name not in EmbedOptions.__optional_keys__:
            raise TypeError(f"an embedding has no option '{name}'")
    request = v1.EmbedRequest(pooling=_POOLINGS[pooling], **rest)
    wanted = "inputs are texts or lists of token ids"
    inputs = [texts] if isinstance(texts, str) else list(listed(wanted, texts))
    if inputs and isinstance(inputs[0], int):
        inputs = [inputs]
    for one in inputs:
        if isinstance(one, str):
            request.inputs.add(text=one)
        else:
            request.inputs.add().ids.ids.extend(listed(wanted, one))
    return request, timeout


def tokenize_request(
    text: str | None,
    messages: Messages | None,
    add_special_tokens: bool,
    parse_special: bool,
    with_bytes: bool,
    continued: bool,
) -> v1.TokenizeRequest:
    if (text is None) == (messages is None):
        raise TypeError("tokenize needs either a text or messages")
    request = v1.TokenizeRequest(
        add_special_tokens=add_special_tokens,
        parse_special=parse_special,
        with_bytes=with_bytes,
        continued=continued,
    )
    if messages is None:
        request.text = text or ""
    else:
        fill_messages(request.messages, messages, {})
    return request
