"""What a request must satisfy to be let in. What can never run is refused here, with the numbers."""

import math
from dataclasses import dataclass, field

from loraplex.lora.files.config_fields import MAX_TOKENS

from ..config import check_step
from ..field_types import ParameterError
from ..pooling.classifier import Classifier
from ..pooling.dense import Dense
from ..protocol import MAX_ADAPTERS, GenerateRequest
from ..sampling_params import MAX_LOGPROBS, SamplingParams
from .beam_search import check_beam_params, check_width


class Overloaded(Exception):
    """The queue is full: the request may be sent again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Facts of the engine that bound what one request and one step may ask for."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int
    eos_token_ids: frozenset[int]
    fingerprint: str
    """Names the base weights and how they are quantized."""
    enable_prefix_caching: bool = True
    splits_prompts: bool = True
    """Whether a prompt may be computed in several steps. If not, no prompt is longer than a step."""
    why_silent: str = ""
    """Why no text is generated; empty: it is."""
    makes_logits: bool = True
    """False: vectors are all that can be asked for."""
    classifier: Classifier = field(default_factory=Classifier)
    """How classes are scored, with the head of the base, if it has one."""
    dense: tuple[Dense, ...] = ()
    """What embeddings go through behind the pooling."""
    head_is_logits: bool = False
    """It is made of rows of the lm_head: an adapter that changes those would need others."""
    seed: int | None = None
    """What requests that bring none draw theirs from; None: at random."""

    def __post_init__(self) -> None:
        check_step(self.max_num_batched_tokens, self.max_num_seqs)
        assert self.splits_prompts or self.max_model_len <= self.max_num_batched_tokens


def bound_length(message: GenerateRequest, limits: Limits, cache_tokens: int, block_size: int) -> int:
    """Most tokens, prompt plus output, that a choice of this request may have. Raises ValueError for what cannot run.

    `cache_tokens` is the size of the KV cache, `block_size` that of one of its blocks.
    """
    vocab_size = most_tokens(limits.vocab_size, message)
    message.params.verify(vocab_size)
    _check_pooling(message)
    if message.pooling is None and limits.why_silent and (message.params.max_tokens != 0 or not limits.makes_logits):
        raise ValueError(limits.why_silent)
    _check_prompt(message, vocab_size, limits)
    _check_adapters(message)
    _check_masks(message, limits)
    length = _check_cache(message, limits, cache_tokens)
    if message.beam_search is not None:
        _check_beams(message, limits, vocab_size)
        return _bound_beams(message, length, block_size, cache_tokens)
    return length


def most_tokens(vocab_size: int, message: GenerateRequest) -> int:
    """Token ids are below it. How many an adapter adds shows when it is resident; the scheduler then looks again."""
    return vocab_size + MAX_TOKENS if message.adapters else vocab_size


def largest_token(message: GenerateRequest) -> int:
    """Of all token ids that the request names."""
    params = message.params
    named = (message.prompt_token_ids, params.stop_token_ids, params.logit_bias or (), params.allowed_token_ids or ())
    return max(max(ids, default=0) for ids in named)


def _check_pooling(message: GenerateRequest) -> None:
    if message.pooling is not None and (message.params != SamplingParams() or message.beam_search is not None):
        raise ValueError("a request with pooling draws no tokens: its params must be the defaults, without beam_search")


def _check_prompt(message: GenerateRequest, vocab_size: int, limits: Limits) -> None:
    token_ids = message.prompt_token_ids
    if not token_ids:
        raise ValueError("the prompt is empty; it needs at least one token")
    if message.pooling is not None and len(token_ids) > limits.max_model_len:
        raise ValueError(f"the prompt has {len(token_ids)} tokens, but it may have {limits.max_model_len}; shorten it")
    if message.pooling is None and len(token_ids) + 1 > limits.max_model_len:
        raise ValueError(
            f"the prompt has {len(token_ids)} tokens, but prompt and output together may have {limits.max_model_len}; "
            f"shorten it to at most {limits.max_model_len - 1}"
        )
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise ValueError(f"the prompt has token id {wrong}, outside the vocabulary of {limits.vocab_size}")


def _check_adapters(message: GenerateRequest) -> None:
    if len(message.adapters) > MAX_ADAPTERS:
        raise ValueError(f"{len(message.adapters)} adapters were asked for; at most {MAX_ADAPTERS} can be added up")
    if len({ref.digest for ref in message.adapters}) < len(message.adapters):
        raise ValueError("an adapter is named twice; add its scales up")
    for ref in message.adapters:
        if not math.isfinite(ref.scale):
            raise ValueError(f"the adapter's scale must be a finite number, got {ref.scale}")


def _check_masks(message: GenerateRequest, limits: Limits) -> None:
    params = message.params
    if params.structured_outputs is not None and not (limits.eos_token_ids or params.stop_token_ids):
        raise ValueError(
            "structured_outputs needs a token that ends the text, and this model has none; name one in stop_token_ids"
        )
    if params.min_tokens == 0 or params.allowed_token_ids is None:
        return
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else limits.eos_token_ids)
    if ends.issuperset(params.allowed_token_ids):
        raise ValueError(
            f"min_tokens {params.min_tokens} forbids every token of allowed_token_ids, as each of them ends the output"
        )


def _check_beams(message: GenerateRequest, limits: Limits, vocab_size: int) -> None:
    params = message.params
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else limits.eos_token_ids)
    check_beam_params(params)
    check_width(params.n, len(ends), min(vocab_size, MAX_LOGPROBS))
    if params.n > limits.max_num_seqs:
        raise ParameterError(
            "n",
            f"{params.n} beams run at once, and the engine runs at most {limits.max_num_seqs}; lower n, or raise "
            "max_num_seqs",
        )


def _bound_beams(message: GenerateRequest, length: int, block_size: int, cache_tokens: int) -> int:
    prompt, n = len(message.prompt_token_ids), message.params.n
    if message.params.max_tokens is None:
        shared = prompt // block_size
        most = shared + (cache_tokens // block_size - shared) // n
        length = max(prompt + 1, min(length, most * block_size + 1))
    wanted = blocks_of_beams(prompt, max(length - 1, prompt), n, block_size) * block_size
    if wanted > cache_tokens:
        raise ValueError(
            f"{n} beams of the prompt's {prompt} tokens and up to {length - prompt} of output need {wanted} tokens of "
            f"the KV cache, which has {cache_tokens}; lower max_tokens or n, or give the engine more cache memory"
        )
    return length


def blocks_of_beams(prompt_length: int, most_tokens: int, beams: int, block_size: int) -> int:
    """Most KV blocks of a beam search: those that the prompt fills, once, and the others of each beam."""
    shared = prompt_length // block_size
    return shared + beams * (-(-most_tokens // block_size) - shared)


def _check_cache(message: GenerateRequest, limits: Limits, cache_tokens: int) -> int:
    prompt = len(message.prompt_token_ids)
    wanted = limits.max_model_len
    if message.pooling is None and message.params.max_tokens is not None:
        wanted = min(wanted, prompt + message.params.max_tokens)
        # The last token drawn is never computed.
        if max(wanted - 1, prompt) > cache_tokens:
            raise ValueError(
                f"the prompt's {prompt} tokens and up to {wanted - prompt} of output never fit in the KV cache of "
                f"{cache_tokens} tokens; shorten the prompt, lower max_tokens, or give the engine more cache memory"
            )
    elif prompt > cache_tokens:
        raise ValueError(
            f"the prompt's {prompt} tokens never fit in the KV cache of {cache_tokens} tokens; "
            "shorten it or give the engine more cache memory"
        )
    if message.pooling is not None:
        return prompt
    return min(wanted, cache_tokens + 1)
