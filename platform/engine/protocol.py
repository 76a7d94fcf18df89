"""All that crosses the border between the API process and the engine process, and nothing else. Encoded as msgpack.

The engine knows digests, token ids and paths the registry hands it; it never sees a name, a key or a text.

Each choice of a request ends with exactly one last message: `Tokens` with a `finish_reason`. Or the whole request ends
with one `RequestFailed`.
"""

import enum
from typing import Final, Literal

import msgspec

from .pooling.wanted import ModelClasses, ModelPooling, Pooling, PoolingKind
from .sampling_params import SamplingParams
from .status import AdapterStatus, Clipping, DeviceMemory, Distribution, StructuredStatus, TenantStatus

MAX_ADAPTERS: Final = 8
"""Most adapters that are summed for one request."""
LAST: Final = 2**31 - 1
"""Priority behind all others."""


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class AdapterRef(msgspec.Struct, frozen=True):
    """An adapter a request runs with. The digest is its whole identity; scale multiplies its own scaling."""

    digest: str
    scale: float = 1.0


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of an adapter are. Registered before the first request may name its digest."""

    digest: str
    path: str
    """Folder with adapter_config.json and adapter_model.safetensors, already checked by the registry."""
    pinned: bool = False


class AddedToken(msgspec.Struct, frozen=True):
    """One entry of `added_tokens` in tokenizer.json."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one token and of the most likely ones at its position, most likely first."""

    token_id: int
    logprob: float
    rank: int
    """1 is the most likely token."""
    top: list[tuple[int, float]] = []


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The `params.n` most likely outputs of a prompt, best first, instead of drawn ones."""

    length_penalty: float = 1.0
    """An output's score is the sum of its log-probabilities divided by its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """When the search ends: True: with `n` outputs; False: when the best that goes on is worse than these, by its
    length so far; "never": when no length could make it better."""


class Message(msgspec.Struct, tag=True):
    """Base of all messages; the tag is the class name."""


# API process -> engine


class GenerateRequest(Message, kw_only=True):
    """One prompt, `params.n` choices. `request_id` is unique among the engine's live requests."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    adapters: list[AdapterRef] = []
    """What is added to the base: nothing, one adapter, or the sum of several different ones."""
    tenant: str = "default"
    """Tenants share the engine's time equally while they have work."""
    share: tuple[str, str] = ("", "")
    """Inside the tenant the groups named first share equally; inside a group, what is named second. Any words."""
    cache_salt: str = ""
    """Prefix-cache blocks are shared only between equal salts; the web layer fills in the tenant."""
    priority: int = 0
    """Lower runs earlier, among the requests of one tenant."""
    beam_search: BeamSearch | None = None
    """None: outputs are drawn."""
    bad_words: list[list[int]] = []
    """Token sequences that must not be put out: those of `params.bad_words`."""
    pooling: Pooling | None = None
    """Instead of a text, one vector of the prompt is asked for, or one of each token; `params` are the defaults and
    mean nothing."""
    second_text: int | None = None
    """Position of the first token of a pair's second text, for models that tell the two apart; None: it is no pair."""
    added_tokens: list[AddedToken] = []
    """Of a structured output's tokenizer, beyond those of the checkpoint's."""


class AbortRequest(Message, kw_only=True):
    """End a request, or one choice of it; what is ended already is fine."""

    request_id: str
    index: int | None = None
    """Only this choice, for one whose text has met a stop string; None: all."""


class RegisterAdapter(Message, kw_only=True):
    """Answered by Reply. Idempotent; a pinned adapter is loaded at once and stays."""

    call_id: int
    spec: AdapterSpec


class UnregisterAdapter(Message, kw_only=True):
    """Answered by Reply at once. Requests that run with it finish; its pages are freed after the last one."""

    call_id: int
    digest: str


class LoadAdapter(Message, kw_only=True):
    """Make it resident now. Answered by Reply when it is, or with the reason why not."""

    call_id: int
    digest: str


class EvictAdapter(Message, kw_only=True):
    """Free its pages as soon as no request uses it; stays registered. Answered by Reply."""

    call_id: int
    digest: str


class PinAdapter(Message, kw_only=True):
    call_id: int
    digest: str
    pinned: bool


class Shutdown(Message):
    """Stop taking requests, end the running ones with an abort, exit 0."""


ToEngine = (
    GenerateRequest
    | AbortRequest
    | RegisterAdapter
    | UnregisterAdapter
    | LoadAdapter
    | EvictAdapter
    | PinAdapter
    | Shutdown
)

# engine -> API process


class Progress(Message, kw_only=True):
    """A stage of starting that has ended."""

    stage: str
    seconds: float


class EngineInfo(Message, kw_only=True):
    """First message of a started engine: facts that do not change while it lives."""

    model: str
    base: str = ""
    """Fingerprint of the weights that it has loaded."""
    base_files: str = ""
    """Digest of the state in which the base's files were as it loaded them (`engine/model/identity/digest.py`), two
    where they were written meanwhile."""
    architecture: str
    device: str
    compute: str
    """Which path was chosen and why, in words, for doctor and the start-up box."""
    arithmetic: str
    """What linears are multiplied with (`quant/schemes/arithmetic.py`)."""
    runtime: dict[str, str]
    """What computes it all, by name and version (`engine/device/runtime.py`)."""
    dtype: str
    vocab_size: int
    max_model_len: int
    max_num_batched_tokens: int = 0
    """Tokens that one step may process."""
    block_size: int
    num_blocks: int
    """KV blocks that requests may hold: without the padding block."""
    kv_cache_bytes: int
    num_states: int = 0
    """States of recurrent layers that requests and snapshots may hold; 0: the model has no such layers."""
    state_bytes: int = 0
    """Of all of them."""
    kv_cache_dtype: str
    """fp8_e4m3, fp8_e5m2, int8, or that of the weights."""
    kv_cache_scales: str = ""
    """Of 8 bits, in words: where they come from."""
    kv_cache_files: str = ""
    """What the KV cache stores and with which static scales, as loaded, in the words of `engine/model/served.py:
    kv_cache_words`; twice where the file of these was written meanwhile."""
    kv_values_per_token: int = 0
    """Numbers in the keys and values of one token."""
    bfloat16_blocks: int
    """`num_blocks` if as many bytes held keys and values in bfloat16."""
    weight_bytes: int
    adapter_memory: int
    adapter_host_memory: int
    max_loaded_adapters: int
    num_threads: int
    load_seconds: float
    pooling: ModelPooling | None = None
    """How its embeddings are made; None: it makes none, for the reason `pooling_refusal`."""
    pooling_refusal: str = ""
    classes: ModelClasses | None = None
    """Of a base with a classification head."""
    classified_by: PoolingKind = PoolingKind.LAST
    """Which tokens a classification head judges by, the base's or an adapter's; all: it classifies each token."""
    keeps_beginning: bool = False
    """Whether a prompt that is cut keeps its first tokens, and the special ones at its end, as encoders want it; else
    it keeps its last."""
    why_silent: str = ""
    """Why it generates no text; empty: it does."""
    quantization: str = ""
    """Of the checkpoint's weights, in words; empty for floats."""
    device_memory: DeviceMemory | None = None
    """None where the model runs in the host's memory."""


class Tokens(Message, kw_only=True):
    """New tokens of one choice. `finish_reason` set: the last message for this choice."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """On the first message of choice 0 when asked for; the first entry is None."""
    pooled: bytes | None = None
    """On the last message of a request with `pooling`: what it asks for, as of `pooling/vectors.py: to_wire`."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id that ended the choice, unless it was an end-of-sequence token."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    queue_seconds: float | None = None
    """On the first message: from arrival until first scheduled."""
    load_seconds: float | None = None
    """On the first message: of queue_seconds, what was spent waiting for its adapters to be loaded."""


class RequestFailed(Message, kw_only=True):
    """The whole request ended without (further) tokens. `kind`: invalid, unavailable, overloaded, out_of_memory (of the
    device, in its step) or internal."""

    request_id: str
    kind: str
    message: str
    param: str | None = None
    """The request's field at fault, where it is known."""


class RequestsStarted(Message, kw_only=True):
    """These do not wait any more: a choice of each has been admitted to the running batch."""

    request_ids: list[str]


class Reply(Message, kw_only=True):
    """Answer to the control message with this call_id; `error` says in words what failed."""

    call_id: int
    error: str | None = None
    unfit: bool = False
    """The error is about the adapter itself: with these settings it will never be loaded."""


class EngineStatus(Message, kw_only=True):
    """Heartbeat, twice a second, also when idle. Counters grow from the engine's start."""

    sequence: int
    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    """Free blocks that still hold a reusable prefix; a part of free_blocks."""
    free_states: int = 0
    """Slots of recurrent states that nobody holds."""
    cached_states: int = 0
    """Snapshots among them: states at the end of a reusable prefix; a part of free_states."""
    block_map: bytes
    """One byte per block: 0 free, 1 cached, 2 used by the base, 3 + i used by adapters[i] (mod 250)."""
    adapters: list[AdapterStatus]
    tenants: dict[str, TenantStatus] = {}
    """By name, those that have asked for anything."""
    adapter_bytes_used: int
    adapter_host_bytes_used: int
    adapter_evictions: int
    """Also of adapters that are not registered any more."""
    steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    preemptions: int
    integrity_errors: int
    step_seconds: float
    """Seconds spent in steps."""
    host_seconds: float
    """The part of step_seconds outside the model: schedule, batch, commit."""
    device_seconds: float | None = None
    """That a GPU was at steps, by its own clock: from a step's first launch to the end of its last. Copies to and from
    the host beside a captured step count as idle; an idle moment between launches of a step that is not captured counts
    as busy. None where the host computes."""
    step_tokens: Distribution
    """Tokens computed in a step, of prompts and of outputs."""
    adapter_load_seconds: Distribution
    """From the start of an adapter's load until it could be used."""
    base_clipping: Clipping | None = None
    """Of tokens that no adapter acted on, as AdapterStatus.clipping."""
    late_compilations: int = 0
    """Kernels compiled since it serves, each while some request waited."""
    structured: StructuredStatus | None = None
    """None: an engine without structured output."""


class EngineFatal(Message, kw_only=True):
    """Last words of an engine that cannot go on, also when it cannot start."""

    message: str


class Busy(Message, kw_only=True):
    """Nothing may come for minutes until the next message, and all is well."""

    what: str


FromEngine = (
    Progress | EngineInfo | Tokens | RequestFailed | RequestsStarted | Reply | EngineStatus | EngineFatal | Busy
)
