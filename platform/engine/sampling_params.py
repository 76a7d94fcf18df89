"""SamplingParams: how the next token is chosen and when to stop. The field names and meanings are vLLM's."""

from typing import Any, Final

import msgspec

from .field_types import BIASES, FLAG, INTEGER, NUMBER, STOP, STOP_TOKEN_IDS, TOKEN_IDS, Fields, Kind, Unfit
from .structured_outputs import StructuredOutputs

MAX_N = 16
MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_STOP_LENGTH = 256
MAX_LOGIT_BIAS = 1024


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Types are checked as it is made: ValueError. Bounds are checked by `verify()`; every process that accepts one
    from outside calls it once.

    `stop` may be one string, and `stop` and `stop_token_ids` may be None for none: both are kept as lists.
    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 switch the filter off. `logprobs` k returns the
    sampled token's and the k most likely tokens' log-probabilities of the unmodified distribution.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    """None: up to the model's length."""
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    """What the text must look like. Log-probabilities stay those of the unmodified distribution."""

    def __post_init__(self) -> None:
        self.check_types()

    def check_types(self) -> None:
        """Again after fields were set. ValueError names the field that holds what it cannot."""
        FIELDS.check(self)

    def verify(self, vocab_size: int) -> None:
        """Raise ValueError naming the first field that is out of bounds."""
        _bounded("n", self.n, 1, MAX_N)
        _bounded("temperature", self.temperature, 0.0, 100.0)
        _bounded("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p must be greater than 0 and at most 1, got 0")
        _bounded("top_k", self.top_k, -1, 2**31 - 1)
        _bounded("min_p", self.min_p, 0.0, 1.0)
        _bounded("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _bounded("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _bounded("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _bounded("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _bounded("max_tokens", self.max_tokens, 0 if self.prompt_logprobs is not None else 1, 2**31 - 1)
        _bounded("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        if len(self.stop) > MAX_STOP:
            raise ValueError(f"stop takes at most {MAX_STOP} strings, got {len(self.stop)}")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise ValueError(f"each stop string must have 1 to {MAX_STOP_LENGTH} characters, got {len(text)}")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _bounded(name, count, 0, MAX_LOGPROBS)
        if self.logit_bias is not None:
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise ValueError(f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens, got {len(self.logit_bias)}")
            for bias in self.logit_bias.values():
                _bounded("logit_bias", bias, -100.0, 100.0)
            _token_ids("logit_bias", list(self.logit_bias), vocab_size)
        _token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids must not be empty")
            _token_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        if self.structured_outputs is not None:
            self.structured_outputs.verify()
            if self.allowed_token_ids is not None:
                raise ValueError("structured_outputs and allowed_token_ids exclude each other; send one of them")


def _read_form(value: Any) -> StructuredOutputs:
    if isinstance(value, StructuredOutputs):
        return value
    raise Unfit(value)


FORM: Final = Kind("StructuredOutputs", _read_form, frozenset({StructuredOutputs}))
FIELDS: Final = Fields(
    dict.fromkeys(("n", "top_k", "min_tokens"), INTEGER)
    | dict.fromkeys(("seed", "max_tokens", "logprobs", "prompt_logprobs"), INTEGER.or_none())
    | dict.fromkeys(("temperature", "top_p", "min_p"), NUMBER)
    | dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), NUMBER)
    | dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"), FLAG)
    | {"logit_bias": BIASES.or_none(), "allowed_token_ids": TOKEN_IDS.or_none()}
    | {"stop": STOP, "stop_token_ids": STOP_TOKEN_IDS, "structured_outputs": FORM.or_none()}
)


def _bounded(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value}")


def _token_ids(name: str, ids: list[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{name} has token id {token_id}, outside the vocabulary of {vocab_size}")
