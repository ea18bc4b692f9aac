"""What goes into requests, and what answers hold."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Union, cast

FinishReason = Literal["length", "eos", "stop_id", "stop_string"]
Health = Literal["serving", "not_serving", "unknown"]

Prompt = Union[str, Sequence[int]]
"""A text, or token ids."""

Message = Mapping[str, Any]
"""A message of a conversation: "role", "content", and further fields as the template reads them."""

Messages = Union[str, Sequence[Message]]
"""A conversation, or its new part; a string is a user's message."""

OnProgress = Callable[[int, int], object]
"""Called with the absorbed tokens of a prompt, and with all of them."""


class TokenOptions(TypedDict, total=False):
    """How text becomes token ids.

    add_special_tokens: add the beginning-of-sequence id before a text, by the rule of the model, if
        the state is new. Default True.
    parse_special: names of control tokens in the text ("<s>") become their ids. Not for
        untrusted text. Default False.
    """

    add_special_tokens: bool
    parse_special: bool


class GenerateOptions(TokenOptions, total=False):
    """Options of a request for an answer; all are optional.

    Where the answer ends:
    max_tokens: tokens at most, >= 0. 0: the prompt is only absorbed. Default 256.
    min_tokens: end-of-sequence and stop ids are not chosen before so many tokens. Default 0.
    ignore_eos: end-of-sequence ids do not end the answer. Default False.
    stop: texts that end it, 16 at most of 1 to 1024 bytes; one may be given alone.
    stop_token_ids: ids that end it besides the model's own, 64 at most.
    include_stop: what ended the answer is part of its text. Default False.

    How a token is chosen; acts in the order allowed ids, logit_bias, penalties, temperature, top_k,
    typical_p, top_p, min_p, draw:
    temperature: divisor of the logits, [0, 1000]; 0: the most likely token. Default 1.
    top_k: keep so many most likely ids; 0: all. Default 0.
    top_p: keep the fewest most likely ids that reach this probability, (0, 1]. Default 1.
    min_p: keep ids at least so many times as likely as the most likely, [0, 1]. Default 0.
    typical_p: keep the fewest ids that reach this probability, those of average surprise first, (0, 1].
        Default 1.
    repetition_penalty: ids of prompt and answer: positive logits are divided by it, negative
        multiplied, [0.01, 100]. Default 1.
    presence_penalty: taken once from the logit of every id of the answer so far, [-2, 2].
    frequency_penalty: taken for each time an id occurs in the answer so far, [-2, 2].
    logit_bias: id -> what is added to its logit, [-1000, 1000]; 1024 entries at most.
    allowed_token_ids: only these may be chosen.
    seed: the same seed gives the same tokens, [0, 2^64). Default: the server draws one.

    What the answer's text must be, at most one of these; what cannot be enforced is refused:
    json_schema: JSON of a JSON Schema, as a mapping or as text; True: any JSON.
    regex: the whole answer matches this regular expression.
    grammar: of an EBNF grammar, from its rule root on.
    choice: one of these texts.
    structural_tag: free text with constrained parts; as the protocol's Constraint has it.
    any_whitespace: JSON may have up to 16 characters of white space between two tokens. Default:
        one space after each comma and colon.

    Further:
    n: answers to the one prompt; choice c samples with seed + c. Only 1 with a session. Default 1.
    logprobs: log-probabilities of each token of the answer and of so many most likely ones,
        [0, 100].
    prompt_logprobs: the same of the prompt's tokens, the first absorbed excepted.
    priority: order of waiting requests, [-10, 10]. Default 0.
    model: the name of a model of the server. Default: that of the session, or the first.
    initial_state: the name of one of ModelInfo.initial_states, from which the prompt starts; with a
        session, the one that it was opened with. Default: none.
    adapter: the name of one of ModelInfo.adapters, with which all tokens are computed; with a
        session, the one that it was opened with. Default: that of the session, or none.
    prefix: of states that prompts leave, so that those which begin alike need not be absorbed anew:
        "off", "use" or "use-and-keep". The tokens are the same. Default "use-and-keep".
    prefix_points: where one is stored, besides where prompts end and part: behind so many ids of
        a prompt of ids, bytes of a text, messages of a chat. At most 8.
    durability: of a durable session: "local" and "remote" refuse any other, "none" does not wait
        until the answer is on the disk. Default: as the session is.
    request_id: for the server's log and `abort`, 1 to 128 of [A-Za-z0-9._-], unique among the
        running requests. Default: the server chooses one; for a durable session the client does, and
        sends a turn again whose answer was lost: the server does it once.
    timeout: seconds for the whole call, attempts and waits between them included. Default: none.
    on_progress: called with the absorbed and with all tokens of a prompt, after each step while it
        takes several. Default: none.
    """

    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    seed: int
    json_schema: Mapping[str, Any] | str | bool
    regex: str
    grammar: str
    choice: Sequence[str]
    structural_tag: Mapping[str, Any] | str
    any_whitespace: bool
    n: int
    logprobs: int
    prompt_logprobs: int
    priority: int
    model: str
    initial_state: str
    adapter: str
    prefix: str
    prefix_points: Sequence[int]
    durability: str
    request_id: str
    timeout: float
    on_progress: OnProgress


class ChatOptions(GenerateOptions, total=False):
    """As GenerateOptions, and what the chat template reads.

    tools: the functions the model may call, [{"type": "function", "function": {"name": ...,
        "description": ..., "parameters": JSON SCHEMA}}, ...]. Calls of them are told from the text.
    tool_choice: "auto", the default: text, calls or both; "required": calls only; "none": text only,
        although the prompt lists the tools; a name: a call of this function.
    allowed_tools: names of the tools that may be called; the prompt lists all. Default: all.
    parallel_tool_calls: False: there is one call at most. Default True.
    variables: further variables of the template, e.g. {"enable_thinking": False}.
    add_generation_prompt: the template opens the answer. Default True, or False with
        continue_final_message.
    continue_final_message: the answer continues the last message. Default False.
    """

    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    allowed_tools: Sequence[str]
    parallel_tool_calls: bool
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool


class ScoreOptions(TokenOptions, total=False):
    """Options of a request for a score.

    top: give every token with its log-probability and so many most likely ones, [0, 100]. Default:
        only sums.
    priority, model, adapter, request_id, timeout: as in GenerateOptions.
    """

    top: int
    priority: int
    model: str
    adapter: str
    request_id: str
    timeout: float


class EmbedOptions(TokenOptions, total=False):
    """Options of a request for embeddings.

    pooling: "last": the hidden state of the last token; "mean": the mean of all tokens. Default
        "last".
    dimensions: only the first ones, [1, ModelInfo.embedding_dimensions]. Default: all.
    priority, model, adapter, request_id, timeout: as in GenerateOptions.
    """

    pooling: str
    dimensions: int
    priority: int
    model: str
    adapter: str
    request_id: str
    timeout: float


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxtuple = 4


class _Shown:
    """A dataclass that is printed with its fields that have a value, long ones cut."""

    def __repr__(self) -> str:
        names = [field.name for field in dataclasses.fields(cast(Any, self))]
        return _shown(self, {name: getattr(self, name) for name in names})


def _shown(one: object, values: Mapping[str, object]) -> str:
    given = {name: value for name, value in values.items() if value not in ((), "", None)}
    inside = ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in given.items())
    return f"{type(one).__name__}({inside})"


@dataclass(frozen=True)
class Candidate:
    """A token that was likely at a place."""

    id: int
    logprob: float  #: natural logarithm, <= 0; -inf where it cannot occur
    token: bytes  #: its bytes, maybe a part of a UTF-8 character; empty for control tokens


@dataclass(frozen=True)
class TokenLogprob(Candidate):
    """A token of a text, how likely the model found it, and what else was likely there."""

    top: tuple[Candidate, ...]  #: the likeliest first


@dataclass(frozen=True)
class PromptInfo:
    """What the server understood, before anything is computed."""

    request_id: str
    model: str
    prompt_tokens: int  #: to be absorbed: the session's pending token, BOS and the prompt
    session_position: int  #: tokens the session had absorbed before; 0 without one
    seed: int  #: the one used


@dataclass(frozen=True)
class ToolCallPart:
    """What is new of a call of a tool."""

    index: int  #: of the call in its choice, from 0
    id: str  #: in the first part only
    name: str  #: of the function, in the first part only
    arguments: str  #: those of a call, joined, are a JSON object


@dataclass(frozen=True, repr=False)
class Chunk(_Shown):
    """The next part of one choice's answer; all texts of a choice, joined, are its answer."""

    choice: int  #: [0, n)
    text: str  #: whole characters; may lag behind the tokens, so it may be empty
    ids: tuple[int, ...]  #: the tokens since the choice's last chunk
    logprobs: tuple[TokenLogprob, ...]  #: where asked for, one for each of `ids`
    tool_calls: tuple[ToolCallPart, ...] = ()  #: with `tools`; none of it is in `text`
    reasoning: str = ""  #: before the answer, of models that reason; none of it is in `text`


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    id: str
    name: str  #: of the function
    arguments: str  #: a JSON object; of an answer that was cut within it, its beginning

    @property
    def values(self) -> dict[str, Any]:
        """The arguments, read. ValueError where the answer was cut within them."""
        return cast("dict[str, Any]", json.loads(self.arguments))

    @property
    def message(self) -> dict[str, Any]:
        """For the field tool_calls of an assistant's message, as chat templates read it."""
        function = {"name": self.name, "arguments": self.values}
        return {"id": self.id, "type": "function", "function": function}

    def result(self, content: str) -> dict[str, str]:
        """The message with the result of the function."""
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": content}


@dataclass(frozen=True)
class Usage:
    """What a request took."""

    prompt_tokens: int  #: absorbed before the first token of the answer
    generated_tokens: int  #: of all choices
    queue_seconds: float  #: from arrival to the first step
    prefill_seconds: float  #: from the first step to the first token
    decode_seconds: float  #: from the first token to the end of the last choice
    session_position: int  #: tokens absorbed now, the pending one not; 0 without a session
    prefix_tokens: int = 0  #: of prompt_tokens, not absorbed anew, as another prompt had begun alike
    prefix_lost_tokens: int = 0  #: further ones whose state has made room for others since
    prefix_replayed_tokens: int = 0  #: further ones without a stored state


@dataclass(frozen=True, repr=False)
class Choice(_Shown):
    """One answer."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None  #: the text or the id that ended it; None where the length did
    logprobs: tuple[TokenLogprob, ...]  #: where asked for, one for each of `ids`
    decode_seconds: float  #: from its first token to its end
    tool_calls: tuple[ToolCall, ...] = ()  #: with `tools`
    reasoning: str = ""  #: before the answer, of models that reason
    reasoning_tokens: int = 0  #: of `ids`, with the tags around the reasoning


@dataclass(frozen=True, repr=False)
class Generation(_Shown):
    """A whole answer. `text`, `reasoning`, `ids`, `finish_reason` and `tool_calls` are the first
    choice's."""

    choices: tuple[Choice, ...]  #: n of them
    prompt: PromptInfo
    prompt_logprobs: tuple[TokenLogprob, ...]  #: where asked for, from the second absorbed token on
    usage: Usage

    def __repr__(self) -> str:
        values: dict[str, object] = {"text": self.text, "tool_calls": self.tool_calls}
        values |= {"tokens": len(self.ids), "finish_reason": self.finish_reason}
        if len(self.choices) > 1:
            values["choices"] = len(self.choices)
        return _shown(self, values)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def ids(self) -> tuple[int, ...]:
        return self.choices[0].ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning


@dataclass(frozen=True, repr=False)
class Score(_Shown):
    """How likely the model finds a text."""

    scored_tokens: int  #: all but the first absorbed, which is BOS where the model has one
    sum_logprob: float  #: of those, natural logarithm
    text_bytes: int  #: of the text, or of the ids' text
    tokens: tuple[TokenLogprob, ...]  #: where `top` was given
    usage: Usage

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of the text; nan for a text without bytes."""
        return -self.sum_logprob / math.log(2) / self.text_bytes if self.text_bytes else math.nan

    @property
    def perplexity(self) -> float:
        """Of a token; nan where none was predicted."""
        return math.exp(-self.sum_logprob / self.scored_tokens) if self.scored_tokens else math.nan


@dataclass(frozen=True, repr=False)
class Embeddings(_Shown):
    """The embeddings of texts, in their order."""

    vectors: tuple[tuple[float, ...], ...]  #: each of Euclidean length 1
    prompt_tokens: tuple[int, ...]  #: of each text
    usage: Usage


@dataclass(frozen=True, repr=False)
class Tokens(_Shown):
    """A text as the model reads it."""

    ids: tuple[int, ...]
    pieces: tuple[bytes, ...]  #: with_bytes: of each id; may be part of a UTF-8 character
