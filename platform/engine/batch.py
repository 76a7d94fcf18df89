"""Batch: the tensors of one step, built once by the runner and shared by every layer.

Shapes: T new tokens, S sequences, R sampled rows, P blocks of the longest block table.
"""

from dataclasses import dataclass

import torch

from loraplex.lora.apply.batch import LoraBatch


@dataclass(slots=True)
class StateSlots:
    """Where the recurrent states of a step's sequences are. Of models that have such states."""

    slots: torch.Tensor
    """[S] int32: a sequence goes on from the state in its slot, and leaves its state there. One whose first token is at
    position 0 begins with zeros."""
    kept_starts: torch.Tensor
    """[S + 1] int32: sequence s keeps copies kept_starts[s] to kept_starts[s + 1]."""
    kept_tokens: torch.Tensor
    """[at least as many as are kept] int32: the token of the step after which each is taken, ascending in each
    sequence."""
    kept_slots: torch.Tensor
    """As long, int32: where it goes."""


@dataclass(slots=True)
class Batch:
    token_ids: torch.Tensor
    """[T] int64, sequence after sequence."""
    positions: torch.Tensor
    """[T] int64, position of each token in its sequence."""
    slot_mapping: torch.Tensor
    """[T] int64, where its key and value go: block id * block_size + offset."""
    query_starts: torch.Tensor
    """[S + 1] int32, sequence s owns tokens query_starts[s] to query_starts[s + 1]."""
    context_lengths: torch.Tensor
    """[S] int32, tokens of sequence s in the cache after this step (its new tokens included)."""
    block_tables: torch.Tensor
    """[S, P] int32, block ids; what no sequence has come to is anything."""
    sample_rows: torch.Tensor
    """[R] int64, tokens whose logits are needed."""
    lora: LoraBatch | None = None
    """None when no token of this step uses an adapter: then no LoRA code runs at all."""
    clipped: torch.Tensor | None = None
    """[L, T] int64, made and filled in by attention: how many numbers of each token's keys and values a static scale
    clipped in each layer, and where one was not finite so low that sums over layers and tokens are negative. None where
    every key and value has its own scale."""
    uneven: bool = False
    """Whether one context of a decode is so long that its keys are shared out although sequences fill the device."""
    mixed: bool = False
    """Whether a sequence may have several tokens although there are as many sequences as tokens, those of the padding
    among them. Else, with as many, each sequence has one at most."""
    segments: torch.Tensor | None = None
    """[T] int64: 1 for the tokens of a pair's second text, else 0. None: there are none of such."""
    states: StateSlots | None = None
    """None for a model without recurrent layers."""
    draws_all: bool = False
    """Whether `sample_rows` are all tokens, in their order: what the layers gave is then needed for nothing else."""
    rows: torch.Tensor | None = None
    """[T] int64 of `single_tokens`: which of the step's tokens these are. None: all."""


def single_tokens(batch: Batch, tokens: torch.Tensor) -> Batch:
    """Some tokens of a step, each a sequence of its own: for what looks at no other tokens."""
    count = len(tokens)
    return Batch(
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        slot_mapping=batch.slot_mapping[tokens],
        query_starts=torch.arange(count + 1, dtype=torch.int32),
        context_lengths=torch.ones(count, dtype=torch.int32),
        block_tables=torch.zeros(count, 1, dtype=torch.int32),
        sample_rows=torch.empty(0, dtype=torch.int64),
        rows=tokens,
    )
