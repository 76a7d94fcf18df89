"""A model that chains a hash over (salt, every token so far with the adapters that act on it and their scales).

The next token is drawn from the hash of the last one.
"""

import zlib
from functools import cache

from loraplex.engine.protocol import FinishReason, GenerateRequest
from loraplex.engine.sampling.state import SampleRow
from loraplex.engine.scheduler.sequence import Sequence, choice_seed

VOCAB = 50
EOS = 0
MASK = (1 << 64) - 1
INVOKING = 7
INVOCATIONS: dict[str, tuple[int, ...]] = {"late": (INVOKING,), "latest": (INVOKING, INVOKING)}
"""Adapters that act on a prompt from the last occurrence of these tokens on."""


def starts_of(message: GenerateRequest) -> list[int] | None:
    """The first token that each adapter acts on; None where the prompt lacks the tokens of one."""
    prompt, starts = tuple(message.prompt_token_ids), []
    for adapter in message.adapters:
        sought = INVOCATIONS.get(adapter.digest, ())
        found = [start for start in range(len(prompt)) if prompt[start : start + len(sought)] == sought]
        if not found:
            return None
        starts.append(found[-1] if sought else 0)
    return starts


def root_state(message: GenerateRequest) -> int:
    return zlib.crc32(message.cache_salt.encode())


def influence(message: GenerateRequest, starts: list[int] | None, position: int) -> int:
    """What the adapters that act on a token, in their order, do to it; 0 where none does."""
    assert starts is not None, "it runs without its adapter"
    acting = [(adapter, start) for adapter, start in zip(message.adapters, starts, strict=True) if start <= position]
    return _influence(*[(adapter.digest, adapter.scale) for adapter, _ in acting]) if acting else 0


@cache
def _influence(*acting: tuple[str, float]) -> int:
    return zlib.crc32(repr(acting).encode())


def next_state(state: int, token_id: int, influence: int = 0) -> int:
    """Content of a slot: depends on everything before it."""
    state ^= influence << 32
    state = ((state ^ (token_id + 1)) * 0x9E3779B97F4A7C15) & MASK
    return state ^ (state >> 29)


def draw(state: int, row: SampleRow) -> int:
    """The next token; siblings with their own seeds part ways when they sample."""
    salt = row.seed * 31 + row.position if row.params.temperature else 0
    token_id = next_state(state, salt % 997) % VOCAB
    while token_id in row.blocked_token_ids:
        token_id = (token_id + 1) % VOCAB
    return token_id


def solo(message: GenerateRequest, index: int, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What a choice must say, computed without an engine."""
    params, starts = message.params, starts_of(message)
    if starts is None:
        return [], FinishReason.ERROR
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    state = root_state(message)
    for position, token_id in enumerate(message.prompt_token_ids):
        state = next_state(state, token_id, influence(message, starts, position))
    most = max_model_len - len(message.prompt_token_ids)
    most = most if params.max_tokens is None else min(most, params.max_tokens)
    output: list[int] = []
    while len(output) < most:
        blocked = tuple(ends) if len(output) < params.min_tokens else ()
        seed = choice_seed(params.seed or 0, index)
        output.append(draw(state, SampleRow(params, seed, len(output), [], [], blocked)))
        if output[-1] in ends:
            return output, FinishReason.STOP
        position = len(message.prompt_token_ids) + len(output) - 1
        state = next_state(state, output[-1], influence(message, starts, position))
    return output, FinishReason.LENGTH


def most_likely(state: int, count: int) -> list[tuple[int, float]]:
    """The `count` tokens that follow most likely, with made-up log-probabilities, all different."""
    logprobs = [(token_id, -(next_state(state, token_id) % (1 << 48) + 1) / (1 << 44)) for token_id in range(VOCAB)]
    return sorted(logprobs, key=lambda entry: -entry[1])[:count]


def solo_beams(message: GenerateRequest, max_model_len: int) -> list[tuple[list[int], FinishReason]]:
    """What a beam search must answer, best first, computed without an engine, from all tokens of all beams."""
    params, search, starts = message.params, message.beam_search, starts_of(message)
    assert search is not None
    if starts is None:
        return [([], FinishReason.ERROR)] * params.n
    prompt = len(message.prompt_token_ids)
    most = min(max_model_len - prompt, params.max_tokens or max_model_len)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int], FinishReason]] = []
    for length in range(1, most + 1):
        grown = []
        for score, output in live:
            state = root_state(message)
            for position, token_id in enumerate(message.prompt_token_ids + output):
                state = next_state(state, token_id, influence(message, starts, position))
            grown += [(score + logprob, [*output, token_id]) for token_id, logprob in most_likely(state, VOCAB)]
        grown.sort(key=lambda beam: -beam[0])
        for score, output in grown[: params.n]:
            if output[-1] in ends or length == most:
                reason = FinishReason.STOP if output[-1] in ends else FinishReason.LENGTH
                finished.append((score / length**search.length_penalty, output, reason))
        finished = sorted(finished, key=lambda entry: -entry[0])[: params.n]
        live = [beam for beam in grown if beam[1][-1] not in ends][: params.n]
        hopeful = most if search.early_stopping == "never" and search.length_penalty > 0 else length
        full = len(finished) == params.n
        if full and (search.early_stopping is True or live[0][0] / hopeful**search.length_penalty <= finished[-1][0]):
            break
    return [(output, reason) for _, output, reason in finished]


def chain(sequence: Sequence, count: int) -> list[int]:
    message = sequence.request.message
    state, starts, states = root_state(message), starts_of(message), []
    for position, token_id in enumerate(sequence.token_ids[:count]):
        state = next_state(state, token_id, influence(message, starts, position))
        states.append(state)
    return states
