"""Properties of the server and its sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mark:
    """A place in a session to which it can be rewound."""

    name: str
    position: int  #: tokens absorbed there


@dataclass(frozen=True)
class SessionInfo:
    """A session as it stands."""

    name: str
    model: str  #: by name
    position: int  #: tokens absorbed
    pending_token: int | None  #: the last generated id, absorbed with the next request
    tier: Literal["empty", "slot", "host", "disk", "unspecified"]  #: where its state is
    busy: bool  #: a request is queued or running on it
    epoch: int  #: counts its changes: requests and rewinds
    idle_seconds: float  #: since its last use
    ttl_seconds: float  #: idle time after which it is closed; 0: never
    state_bytes: int  #: of its state
    page_bytes: int  #: of these, those that grow with its tokens
    host_bytes: int  #: reserved in host memory, its own and its marks'
    rewind_tokens: int  #: ids of so many last tokens are stored
    tokens_from: int  #: the ids of its tokens are stored from this position on
    marks: tuple[Mark, ...]
    initial_state: str  #: the name of the state that it started from; "": none
    adapter: str  #: the name of that with which its tokens are computed; "": none
    parent: str  #: the session that it was forked from, which may be closed; "": not a fork
    durability: Literal["none", "local", "remote", "unspecified"]  #: what its answers' ends promise
    #: Acknowledged turns may be lost, and position is what is still there: see Session.accept().
    in_doubt: bool


@dataclass(frozen=True)
class OpInfo:
    """An op of the model, and what computes it."""

    name: str
    implementation: str


@dataclass(frozen=True)
class InitialState:
    """A state from which requests and sessions can start."""

    name: str
    position: int  #: tokens that it counts as absorbed; 1 for a tuned state
    state_bytes: int  #: in host memory


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that requests and sessions can choose."""

    name: str
    rank: int  #: the largest of its matrices
    matrices: int  #: of the model that it changes
    bytes: int  #: in memory
    digest: str  #: of its files; states and answers are the same where it is equal


@dataclass(frozen=True)
class ModelInfo:
    """The model that is served."""

    name: str
    family: str  #: e.g. "xlstm"
    parameters: int  #: numbers in its weights
    weight_bytes: int  #: as loaded
    weight_type: str  #: e.g. "bf16"
    vocab_size: int  #: rows of its logits, padding included
    token_count: int  #: ids that have a token: [0, token_count)
    tokenizer: str  #: one line about it
    bos_id: int | None
    eos_ids: tuple[int, ...]
    state_bytes: int  #: of one session, whose state may also grow: state_bytes_per_token
    state_bytes_per_token: int  #: that each token adds, in pages of 64 tokens; 0: states do not grow
    max_session_tokens: int  #: of states that grow; 0: they do not
    embedding_dimensions: int  #: of `embed`; 0: the model gives none
    chunk_tokens: int  #: prompts are cut on this grid
    fingerprint: str  #: of the weights; may be empty
    backend: str  #: e.g. "cpu", and what machine it is
    ops: tuple[OpInfo, ...]
    initial_states: tuple[InitialState, ...]
    adapters: tuple[Adapter, ...]  #: that the key's tenant may see
    has_chat_template: bool  #: whether `chat` works
    chat_template_problem: str  #: why not, where the model has a template that cannot be used
    failed: bool  #: its requests are refused, while other models serve


@dataclass(frozen=True)
class Models:
    """The models of the server."""

    models: tuple[ModelInfo, ...]  #: that serve: those of its flags, and those loaded since
    loading: tuple[str, ...]  #: names of models that are being loaded, or wait for it
    unloading: tuple[str, ...]  #: names of models that are being unloaded, or wait for it


@dataclass(frozen=True)
class Limits:
    """What requests are checked against; zero while the server loads its model."""

    slots: int  #: sequences that can run or be held on the device at once
    max_queue: int  #: requests that may wait for one
    max_message_bytes: int  #: of one request message
    max_prompt_tokens: int
    max_generated_tokens: int
    max_choices: int  #: n
    max_stop_strings: int
    max_stop_string_bytes: int
    max_stop_token_ids: int
    max_logprobs: int
    max_host_bytes: int  #: of session states and marks
    default_ttl_seconds: float  #: of sessions; 0: never


@dataclass(frozen=True)
class ServerInfo:
    """The server."""

    version: str
    state: Literal["loading", "serving", "draining", "unspecified"]
    uptime_seconds: float
    limits: Limits


@dataclass(frozen=True)
class Slots:
    """The places where sequences run."""

    total: int
    free: int
    running: int  #: serve a request
    idle_session: int  #: hold a session's state between requests


@dataclass(frozen=True)
class SessionCounts:
    """The sessions there are."""

    total: int  #: without stored responses
    responses: int  #: stored responses of /v1/responses whose state is kept
    host: int  #: of both, with their state in host memory
    host_bytes: int  #: of session states and marks
    disk: int  #: of both, with their state on disk only
    disk_bytes: int  #: of all files of the server's --state-dir


@dataclass(frozen=True)
class Pages:
    """Memory of the device for what states grow by, in pages of 64 tokens."""

    total: int
    free: int  #: pages of idle sessions in slots are not free, and given up first
    bytes: int  #: of all pages
    preemptions: int  #: since the start: requests that gave up their pages and waited again


@dataclass(frozen=True)
class Prefixes:
    """Cached states of prompts."""

    states: int  #: in host memory
    bytes: int  #: that they take
    limit_bytes: int  #: that they may take now: what sessions have not reserved
    spared_tokens: int  #: saved since the start; not in prompt_tokens
    disk_states: int
    disk_bytes: int


@dataclass(frozen=True)
class Load:
    """What the server is doing."""

    requests_running: int  #: sequences that hold a slot for a request
    requests_waiting: int
    max_queue: int
    slots: Slots
    sessions: SessionCounts
    prompt_tokens: int  #: since the start
    generated_tokens: int  #: since the start
    steps: int  #: of the engine, since the start
    expected_queue_seconds: float  #: that a short request of priority 0 would wait
    prefixes: Prefixes
    pages: Pages | None  #: None: states do not grow
