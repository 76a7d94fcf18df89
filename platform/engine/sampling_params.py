"""SamplingParams: how the next token is chosen and when to stop. The field names and meanings are vLLM's."""

import copy
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, Self

import msgspec

from .field_types import (
    BIASES,
    FLAG,
    INTEGER,
    NUMBER,
    STOP,
    STOP_TOKEN_IDS,
    TOKEN_IDS,
    Fields,
    Kind,
    ParameterError,
    Unfit,
)
from .structured_outputs import StructuredOutputs

MAX_N = 16
MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_STOP_LENGTH = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128


class RequestOutputKind(IntEnum):
    """Which outputs a stream of one request gives."""

    CUMULATIVE = 0
    """Each has all that came so far."""
    DELTA = 1
    """Each has what came since the last."""
    FINAL_ONLY = 2
    """One, at the end."""


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Types and bounds are checked as it is made: ParameterError, a ValueError. `verify()` checks token ids.

    `stop` may be one string, and `stop` and `stop_token_ids` may be None for none: both are kept as lists.
    `temperature` 0 is greedy and sets `top_p`, `top_k` and `min_p` back to their defaults. `top_k` 0 or -1, `top_p` 1
    and `min_p` 0 switch the filter off. `seed` -1 is none. `logprobs` k returns the sampled token's and the k most
    likely tokens' log-probabilities of the unmodified distribution.
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
    bad_words: list[str] = []
    """Texts that must not be put out, each as its tokens at the beginning of a text and after a space. One string and
    None are taken as for `stop`."""
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    """False: outputs have token ids and no text."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    """Of the prompt only so many last tokens are used; -1: as many as the model takes. In Python only."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """Of a stream in Python."""
    structured_outputs: StructuredOutputs | None = None
    """What the text must look like; a dict of its fields too. Log-probabilities stay those of the unmodified
    distribution."""
    spaces_between_special_tokens: bool = True
    logits_processors: None = None
    extra_args: None = None
    flat_logprobs: bool = False
    skip_reading_prefix_cache: bool | None = None
    """This and the four before it are vLLM's. Another value than the default is refused with what to use instead."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Again after fields were set. ParameterError says which field holds what it cannot."""
        FIELDS.check(self)
        for name, (defaults, advice) in UNAVAILABLE.items():
            value = getattr(self, name)
            if value not in defaults:
                raise ParameterError(name, f"{name}={value!r} is not supported: {advice}")
        self._normalize()
        self._check_bounds()

    def clone(self) -> Self:
        """A copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def verify(self, vocab_size: int) -> None:
        """ParameterError for the first token id outside the vocabulary, and as check()."""
        self.check()
        _token_ids("logit_bias", list(self.logit_bias or ()), vocab_size)
        _token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        _token_ids("allowed_token_ids", self.allowed_token_ids or [], vocab_size)

    def _normalize(self) -> None:
        if self.temperature == 0.0:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        if self.seed == -1:
            self.seed = None

    def _check_bounds(self) -> None:
        _bounded("n", self.n, 1, MAX_N)
        _bounded("temperature", self.temperature, 0.0, 100.0)
        _bounded("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ParameterError("top_p", "top_p must be greater than 0 and at most 1, got 0")
        _bounded("top_k", self.top_k, -1, 2**31 - 1)
        _bounded("min_p", self.min_p, 0.0, 1.0)
        _bounded("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _bounded("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _bounded("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _bounded("seed", self.seed, -(2**63), 2**63 - 1)
        self._check_lengths()
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _bounded(name, count, 0, MAX_LOGPROBS)
        self._check_token_choice()

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _bounded("max_tokens", self.max_tokens, 0 if self.prompt_logprobs is not None else 1, 2**31 - 1)
        _bounded("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _bounded("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1)
        if len(self.stop) > MAX_STOP:
            raise ParameterError("stop", f"stop takes at most {MAX_STOP} strings, got {len(self.stop)}")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_LENGTH:
                message = f"each stop string must have 1 to {MAX_STOP_LENGTH} characters, got {len(text)}"
                raise ParameterError("stop", message)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ParameterError("bad_words", f"bad_words takes at most {MAX_BAD_WORDS}, got {len(self.bad_words)}")
        for text in self.bad_words:
            if not 1 <= len(text.strip()) <= MAX_STOP_LENGTH:
                message = f"each of bad_words must have 1 to {MAX_STOP_LENGTH} characters, got {text[:40]!r}"
                raise ParameterError("bad_words", message)
        if self.stop and not self.detokenize:
            raise ParameterError(
                "stop", "stop strings are found in text: set detokenize to True, or use stop_token_ids"
            )

    def _check_token_choice(self) -> None:
        if self.logit_bias is not None:
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                message = f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens, got {len(self.logit_bias)}"
                raise ParameterError("logit_bias", message)
            for bias in self.logit_bias.values():
                _bounded("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids == []:
            raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty")
        if self.structured_outputs is not None:
            self.structured_outputs.verify()
            if self.allowed_token_ids is not None:
                message = "structured_outputs and allowed_token_ids exclude each other; send one of them"
                raise ParameterError("structured_outputs", message)


def _read_form(value: Any) -> StructuredOutputs:
    if isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping):
        raise Unfit(value)
    names = StructuredOutputs.__struct_fields__
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        message = f"structured_outputs has no field {unknown!r}; it has {', '.join(names)}"
        raise ParameterError("structured_outputs", message)
    return StructuredOutputs(**value)


def _read_output_kind(value: Any) -> RequestOutputKind:
    if type(value) is int and value in list(RequestOutputKind):
        return RequestOutputKind(value)
    raise Unfit(value)


FORM: Final = Kind("StructuredOutputs or a dict of its fields", _read_form, frozenset({StructuredOutputs}))
OUTPUT_KIND: Final = Kind("a RequestOutputKind", _read_output_kind, frozenset({RequestOutputKind}))
UNAVAILABLE: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "logits_processors": ((None, []), "use logit_bias, allowed_token_ids or structured_outputs"),
    "extra_args": ((None, {}), "nothing here reads it"),
    "flat_logprobs": ((False,), "log-probabilities come as one dict a token"),
    "skip_reading_prefix_cache": ((None, False), "make the LLM with enable_prefix_caching=False"),
    "spaces_between_special_tokens": ((True,), "the tokenizer decides on spaces"),
}
"""By field: the values that are taken, and what to do about another."""
FIELDS: Final = Fields(
    dict.fromkeys(("n", "top_k", "min_tokens"), INTEGER)
    | dict.fromkeys(("seed", "max_tokens", "truncate_prompt_tokens"), INTEGER.or_none())
    | dict.fromkeys(("logprobs", "prompt_logprobs"), INTEGER.or_none())
    | dict.fromkeys(("temperature", "top_p", "min_p"), NUMBER)
    | dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), NUMBER)
    | dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"), FLAG)
    | {"logit_bias": BIASES.or_none(), "allowed_token_ids": TOKEN_IDS.or_none()}
    | {"stop": STOP, "bad_words": STOP, "stop_token_ids": STOP_TOKEN_IDS, "structured_outputs": FORM.or_none()}
    | {"output_kind": OUTPUT_KIND}
)


def _bounded(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ParameterError(name, f"{name} must be between {low} and {high}, got {value}")


def _token_ids(name: str, ids: list[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            message = f"{name} has token id {token_id}, outside the vocabulary of {vocab_size}"
            raise ParameterError(name, message)
