"""A model that is a hash, over a memory of blocks.

What it writes for a token depends on the token, its position and the adapters that act on it; what it draws depends on
all it reads through the block tables. So a wrong table, a block or an adapter that was given back too early, a stale
placeholder or an array that was written while its copy was on the way changes tokens.
"""

import random
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from loraplex.engine.protocol import FinishReason, GenerateRequest
from loraplex.engine.sampling.state import SampleRow
from loraplex.engine.scheduler.sequence import choice_seed

from .fake_model import EOS, VOCAB, starts_of
from .virtual_stream import VirtualStream

SLOTS = 2
"""Places for adapters."""
STATES = 16
"""Slots of recurrent states."""
NO_TOKEN = -1
POISON = 13
"""A request with this top_k has logits that are no numbers from its third token on."""
MASK = (1 << 64) - 1
Acting = Sequence[tuple[int, float]]
"""Weights and scale of each adapter that acts on a token."""
Written = tuple[int, int, int]
"""A slot of the cache, the token that a step writes there, and its key."""


class Inputs(NamedTuple):
    """A step as Batch has it, but for `acting`: slot and scale of each adapter that acts on each token."""

    token_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    query_starts: list[int]
    context_lengths: list[int]
    block_tables: list[list[int]]
    sample_rows: list[int]
    acting: list[list[tuple[int, float]]]


Brought = list[tuple[int, list[tuple[int, int]]]]
"""Of each sequence of a step: the slot of its state, and what is kept on the way: after how many tokens, where."""


class Draw(NamedTuple):
    """What the host tells of a row."""

    salt: int
    blocked: tuple[int, ...]
    poisoned: bool


class VirtualDevice:
    """One for all traffic of a block size: what an earlier one left behind may not matter.

    Of two steps in flight it writes the keys of the first again behind those of the second: until a step has ended its
    blocks are its own, and in the right order a block given back too early would show nothing, as its next holder
    writes over it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        source = random.Random(block_size)
        self.compute, self.transfer = VirtualStream(source), VirtualStream(source)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.weights = [0] * SLOTS
        """Of the adapter in each slot."""
        self.keys = [0] * (num_blocks * block_size)
        self.tokens = [0] * (num_blocks * block_size)
        """Which token each key was made of: the model reads only `keys`."""
        self.states = [0] * STATES
        """Of each slot, what `state_of` says of all keys up to one position."""
        self.mistakes: list[str] = []
        """That no token shows."""
        self._written: list[Written] = []
        """By the last forward."""
        self._again: list[Written] = []
        self._left: dict[int, int] = {}
        """States that the last step left."""
        self._left_again: dict[int, int] = {}
        self._logits: list[int] = []

    def begin(self, overlaps: bool) -> None:
        """The next forward is of a new step; whether the last one is in flight too."""
        self._again = self._written if overlaps else []
        self._left_again = self._left if overlaps else {}
        self._left = {}

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        size = self.block_size
        for memory in (self.keys, self.tokens):
            for source, destination in pairs:
                memory[destination * size : (destination + 1) * size] = memory[source * size : (source + 1) * size]

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.states[destination] = self.states[source]

    def bring_on(self, step: Inputs, brought: Brought) -> None:
        """The states of a step whose keys are written, each from where it was left."""
        for sequence, (slot, kept) in enumerate(brought):
            first, last = step.query_starts[sequence : sequence + 2]
            start, end = step.positions[first], step.positions[last - 1] + 1
            keys = [self.keys[self._slot(step, sequence, place)] for place in range(end)]
            # 0, or what is wrong with the state: it stays so, and what is drawn of it too.
            wrong = self.states[slot] - state_of(keys[:start]) if start else 0
            self._left |= {place: state_of(keys[:position]) + wrong for position, place in kept}
            self._left[slot] = state_of(keys) + wrong
            for place, row in enumerate(step.sample_rows):
                self._logits[place] ^= wrong & MASK if first <= row < last else 0
        for slot, state in (self._left | {s: v for s, v in self._left_again.items() if s not in self._left}).items():
            self.states[slot] = state

    def forward(self, step: Inputs) -> None:
        self._written = [
            (slot, token_id, key_of(token_id, position, [(self.weights[place], scale) for place, scale in acting]))
            for token_id, position, slot, acting in zip(*step[:3], step.acting, strict=True)
            if slot >= 0
        ]
        for slot, token_id, key in self._written + self._again:
            self.tokens[slot], self.keys[slot] = token_id, key
        self._logits = [self._attend(step, row) for row in step.sample_rows]

    def draw(self, draws: list[Draw]) -> list[int]:
        """Of each row of the last forward."""
        return [
            NO_TOKEN if draw.poisoned else choose(state, draw.salt, draw.blocked)
            for state, draw in zip(self._logits, draws, strict=False)
        ]

    def _attend(self, step: Inputs, row: int) -> int:
        sequence = bisect_right(step.query_starts, row) - 1
        count = step.positions[row] + 1
        assert count <= step.context_lengths[sequence]
        return state_of([self.keys[self._slot(step, sequence, place)] for place in range(count)])

    def _slot(self, step: Inputs, sequence: int, place: int) -> int:
        return step.block_tables[sequence][place // self.block_size] * self.block_size + place % self.block_size


def describe(row: SampleRow) -> Draw:
    seed = row.seed * 31 + row.position if row.params.temperature else 0
    counted = hash(tuple(row.output_token_ids)) if row.penalized else 0
    poisoned = row.params.top_k == POISON and row.position >= 2
    return Draw((seed ^ counted) & MASK, row.blocked_token_ids, poisoned)


def weights_of(digest: str) -> int:
    return zlib.crc32(digest.encode())


def key_of(token_id: int, position: int, acting: Acting) -> int:
    mixed = (token_id + 1) * 0x9E3779B97F4A7C15 ^ (position + 1) * 0xBF58476D1CE4E5B9
    for weights, scale in acting:
        mixed = mixed * 31 + weights * int(scale * 64)
    mixed &= MASK
    return ((mixed ^ (mixed >> 29)) * 0xD6E8FEB86659FD93) & MASK


def state_of(keys: Sequence[int]) -> int:
    """Of all keys in their order."""
    return sum((2 * place + 1) * key for place, key in enumerate(keys)) & MASK


def choose(state: int, salt: int, blocked: tuple[int, ...]) -> int:
    token = ((((state ^ (salt * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93) & MASK) >> 32) % VOCAB
    while token in blocked:
        token = (token + 1) % VOCAB
    return token


def alone(message: GenerateRequest, index: int, max_length: int) -> tuple[list[int], FinishReason]:
    """What a choice must say, computed without engine, blocks or device; ERROR where its logits are no numbers."""
    params, token_ids = message.params, list(message.prompt_token_ids)
    starts = starts_of(message)
    assert starts is not None
    adapters = [(weights_of(ref.digest), ref.scale, start) for ref, start in zip(message.adapters, starts, strict=True)]
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    most = max_length - len(token_ids)
    most = most if params.max_tokens is None else min(most, params.max_tokens)
    output: list[int] = []
    state = counted = 0
    while len(output) < most:
        for position in range(counted, len(token_ids)):
            acting = [(weights, scale) for weights, scale, start in adapters if start <= position]
            state += (2 * position + 1) * key_of(token_ids[position], position, acting)
        counted = len(token_ids)
        blocked = tuple(ends) if len(output) < params.min_tokens else ()
        draw = describe(SampleRow(params, choice_seed(params.seed or 0, index), len(output), [], output, blocked))
        if draw.poisoned:
            return output, FinishReason.ERROR
        output.append(choose(state & MASK, draw.salt, blocked))
        token_ids.append(output[-1])
        if output[-1] in ends:
            return output, FinishReason.STOP
    return output, FinishReason.LENGTH
