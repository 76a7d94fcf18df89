"""What `LLM.generate` returns. The field names and meanings are vLLM's."""

from dataclasses import dataclass

from .lora_request import LoRARequest
from .prompts import Adapter


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int
    """1 is the most likely token."""
    decoded_token: str


Logprobs = dict[int, Logprob]
"""Token id -> its log-probability at one position: the token that is there and the most likely ones."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One choice."""

    index: int
    text: str
    token_ids: list[int]
    """With the end-of-sequence or stop token that ended the choice, when one did."""
    cumulative_logprob: float | None
    """Sum over the tokens; None unless logprobs were asked for, like `logprobs`."""
    logprobs: list[Logprobs] | None
    finish_reason: str | None
    """stop, length, abort or error; None while it runs."""
    stop_reason: int | str | None
    """The stop token id or stop string that ended the choice; None for an end-of-sequence token."""
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request, in seconds; those of other clocks than `arrival_time` compare with one another alone."""

    arrival_time: float
    """Since 1970."""
    queued_ts: float
    """Monotonic, like the two below."""
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    num_generation_tokens: int = 0
    """Over all choices."""

    @property
    def first_token_latency(self) -> float | None:
        return None if self.first_token_ts is None else self.first_token_ts - self.queued_ts


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One prompt with its choices."""

    request_id: str
    prompt: str | None
    """None when the prompt was given as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    """One entry per prompt token, the first None; None unless asked for."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    adapter: Adapter | None
    """The adapter it ran with, as it was asked for; None for the base."""
    lora_request: LoRARequest | None = None
    metrics: RequestMetrics
    error: str | None = None
    """What ended it, where a choice's `finish_reason` is error."""
