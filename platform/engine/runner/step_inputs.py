"""StepInputs: all that the kernels read of a step, at addresses that never change, sent in one copy.

Steps are padded to a few sizes, unless they make what no captured one does. Lists of adapters are sent where they
differ from those of the step before.
Shapes as in Batch: T new tokens, S sequences, R sampled rows, P blocks of the longest block table.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from loraplex.lora.apply.batch import NO_SLOT, LoraBatch, PageTable
from loraplex.lora.apply.step_buffers import StepAdapters, StepLists, list_words, lists_of_rows, rounds_of_rows
from loraplex.lora.files.manifest import HEAD

from ..batch import Batch, StateSlots
from ..device.staging import Staging
from ..device.stream import Stream
from ..kernels.cuda.sampling.layout import IDLE, RECORD
from ..kv_cache.keyed_pool import PADDING
from ..scheduler.plan import Scheduled
from ..scheduler.sequence import Sequence
from .adapter_batches import AdapterBatches
from .block_tables import BlockTables
from .step_layout import KNOWN, AdapterSlots, list_tokens, place_tokens, state_slots, wanted_rows
from .step_sizes import StepSizes, finest_sizes, pad_size
from .token_layout import Ints, lay_out

NOT_WRITTEN = -1
"""In slot_mapping of the padding."""
MOST_KEPT = 3
"""States of a sequence that a step keeps on the way: see scheduler/sequence_states.py."""
NO_RECORDS = np.empty((0, RECORD), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepShape:
    """Sizes of a step, with the padding."""

    tokens: int
    sequences: int
    rows: int
    """To draw from."""
    wanted: np.ndarray
    """On the host, without the padding: as `wanted_rows` tells them."""
    is_decode: bool
    """One token and one draw for each sequence."""
    is_fixed: bool
    """Padded, so that its launches are captured: all steps but those with log-probabilities of prompts or with vectors,
    which take rows that no launch can know before."""
    lora: LoraBatch | None
    """On the host, with the lists on the device in its `arrays`."""
    uneven: bool = False
    """As in Batch."""
    stale: frozenset[int] = frozenset()
    """As of StepResult."""

    @property
    def mixed(self) -> bool:
        """As in Batch."""
        return self.is_fixed and not self.is_decode

    @property
    def lora_rounds(self) -> int:
        return 0 if self.lora is None else len(self.lora.round_starts) - 1


class StepInputs:
    """For steps of up to `tokens` tokens and `sequences` sequences of up to `blocks` blocks, with up to `rounds`
    adapters summed for a token."""

    def __init__(
        self,
        table: PageTable,
        stream: Stream,
        *,
        tokens: int,
        sequences: int,
        blocks: int,
        block_size: int,
        rounds: int = 1,
        has_states: bool = False,
        sizes: StepSizes | None = None,
    ) -> None:
        """has_states: of a model with recurrent layers. sizes: None for the finest."""
        words = list_words(table, tokens)
        device = table.arena.device
        per_token = dict.fromkeys(("token_ids", "positions", "slot_mapping"), ((tokens,), torch.int64))
        # What differs in length stands at both ends: a copy begins at the last round that acts.
        lists = {f"lora {number}": ((words,), torch.int32) for number in reversed(range(rounds))}
        heads = dict.fromkeys(
            (f"head {number}" for number in reversed(range(rounds))), ((list_words(table, sequences),), torch.int32)
        )
        states = {
            "state_slots": ((sequences,), torch.int32),
            "kept_starts": ((sequences + 1,), torch.int32),
            "kept_tokens": ((MOST_KEPT * sequences,), torch.int32),
            "kept_slots": ((MOST_KEPT * sequences,), torch.int32),
        }
        self._has_states = has_states
        arrays = {
            **heads,
            **lists,
            **per_token,
            "sample_rows": ((tokens,), torch.int64),
            "token_sources": ((tokens,), torch.int32),
            "query_starts": ((sequences + 1,), torch.int32),
            "context_lengths": ((sequences,), torch.int32),
            "slots": ((tokens,), torch.int32),
            **(states if has_states else {}),
            "parameters": ((sequences, RECORD), torch.int64),
            "block_tables": ((sequences, blocks), torch.int32),
        }
        self._staging = Staging(arrays, device, stream)
        self._tensors = self._staging.device
        self.lora: list[StepLists] = []
        """By round, one after the other on the device."""
        for name in reversed(lists):
            self.lora.append(StepLists(table, tokens, self._tensors[name], *self.lora[:1]))
        self._heads = [StepLists(table, sequences, self._tensors[name], self.lora[0]) for name in reversed(heads)]
        """As `lora`, of the rows to draw from."""
        self.parameters = self._tensors["parameters"]
        """On the device, of the sampler: `records` of the last `write`, and idle rows."""
        self.blocks = blocks
        self._tables = BlockTables(sequences, blocks)
        self._adapter_batches = AdapterBatches()
        self._listed: LoraBatch | None = None
        """What the lists on the device hold, once all that is enqueued is done."""
        self.sizes = sizes or finest_sizes(sequences, tokens)
        self._block_size = block_size
        self._drawn: dict[Sequence, int] = {}
        """Rows in which the last step drew."""

    def write(
        self, scheduled: list[Scheduled], adapters: AdapterSlots,
        is_uneven: Callable[[np.ndarray], bool] = lambda lengths: False, records: np.ndarray = NO_RECORDS,
    ) -> StepShape:  # fmt: skip
        """Fill in a step and enqueue its copy to the device. is_uneven: Batch.uneven of a decode, by the lengths of its
        contexts. records: [draws, RECORD] int64, as of RowNeeds."""
        tables = self._tables.of(scheduled)
        layout = place_tokens(scheduled, tables, self._block_size, lay_out)
        owners, positions, slots, query_starts, context_lengths = layout
        rows = wanted_rows(scheduled, query_starts)
        sequences, drawn = len(scheduled), sum([item.sample for item in scheduled])
        is_decode = len(positions) == len(rows) == sequences == drawn
        lora, stale = self._adapter_batches.of(scheduled, adapters, owners, positions, is_decode)
        is_fixed = len(rows) == drawn and not any(item.pooled for item in scheduled)
        sizes = self._padded(len(positions), is_decode) if is_fixed else (len(positions), sequences, drawn)
        shape = StepShape(*sizes, rows, is_decode, is_fixed, lora)
        uneven = shape.is_decode and is_uneven(context_lengths)
        if uneven or stale:
            shape = replace(shape, uneven=uneven, stale=stale)
        ids, sources = list_tokens(scheduled, self._drawn)
        host = self._staging.open()
        _fill(host["token_ids"], ids, shape.tokens, 0)
        _fill(host["token_sources"], sources, shape.tokens, KNOWN)
        _fill(host["positions"], positions, shape.tokens, 0)
        _fill(host["slot_mapping"], slots, shape.tokens, NOT_WRITTEN)
        _fill(host["query_starts"], query_starts, shape.sequences + 1, len(positions))
        _fill(host["context_lengths"], context_lengths, shape.sequences, 0)
        _fill(host["sample_rows"], rows, shape.rows, 0)
        _fill(host["parameters"], records, shape.rows, IDLE)
        if self._has_states:
            _fill_states(host, shape, state_slots(scheduled, query_starts))
        # What no sequence has come to keeps what it held: zeros for a context of 131,072 are 32 KiB a sequence.
        host["block_tables"][: len(tables), : tables.shape[1]] = tables
        first = "token_ids"
        if lora is not None:
            _fill(host["slots"], lora.token_slot[:, 0].numpy(), shape.tokens, NO_SLOT)
            if lora is not self._listed:
                rounds = self._write_rounds(host, lora)
                heads = self._write_heads(host, shape, lora, rounds)
                lora.arrays = StepAdapters(rounds, self._tensors["slots"], heads)
                first = f"{'head' if shape.mixed and heads else 'lora'} {len(rounds) - 1}"
        self._staging.send(first, "block_tables", shape.sequences)
        self._listed = lora or self._listed
        self._drawn = {item.sequence: row for row, item in enumerate(item for item in scheduled if item.sample)}
        return shape

    def batch(self, shape: StepShape) -> Batch:
        """The step on the device, as every layer reads it; its sample_rows are those to draw from."""
        tensors = self._tensors
        return Batch(
            token_ids=tensors["token_ids"][: shape.tokens],
            positions=tensors["positions"][: shape.tokens],
            slot_mapping=tensors["slot_mapping"][: shape.tokens],
            query_starts=tensors["query_starts"][: shape.sequences + 1],
            context_lengths=tensors["context_lengths"][: shape.sequences],
            block_tables=tensors["block_tables"][: shape.sequences],
            sample_rows=tensors["sample_rows"][: shape.rows],
            lora=shape.lora,
            uneven=shape.uneven,
            draws_all=shape.is_decode,
            mixed=shape.mixed,
            states=self._state_slots(shape) if self._has_states else None,
        )

    def judged(self, shape: StepShape, rows: slice) -> Batch:
        """The same step, whose sample_rows are others of those that `wanted_rows` tells. Not for what is captured."""
        batch, lora = self.batch(shape), shape.lora
        batch.sample_rows = self._tensors["sample_rows"][rows]
        if lora is not None and HEAD in lora.changed:
            head = self._lists_of(lora, shape.wanted[rows])
            batch.lora = replace(lora, arrays=lora.arrays._replace(head=head))
        return batch

    def _padded(self, tokens: int, is_decode: bool) -> tuple[int, int, int]:
        """Tokens, sequences and rows. A step with prompts has as many sequences as there may be; idle ones end at
        once."""
        if is_decode:
            return (pad_size(tokens, self.sizes.decodes),) * 3
        tokens = pad_size(tokens, self.sizes.prompts)
        sequences = min(tokens, self.sizes.decodes[-1])
        return tokens, sequences, sequences

    def _state_slots(self, shape: StepShape) -> StateSlots:
        tensors = self._tensors
        return StateSlots(
            slots=tensors["state_slots"][: shape.sequences],
            kept_starts=tensors["kept_starts"][: shape.sequences + 1],
            kept_tokens=tensors["kept_tokens"],
            kept_slots=tensors["kept_slots"],
        )

    def placeholders(self, shape: StepShape) -> tuple[torch.Tensor, torch.Tensor]:
        """token_ids [T] on the device, and [T] int32 of which row that the step before drew each is to become before
        anything else of the step, or KNOWN. A request whose draw failed ends before the token that comes of it could be
        seen."""
        return self._tensors["token_ids"][: shape.tokens], self._tensors["token_sources"][: shape.tokens]

    def _write_rounds(self, host: dict[str, np.ndarray], lora: LoraBatch) -> list[StepLists]:
        rounds = lora.rounds()
        for number, batch in enumerate(rounds):
            self.lora[number].write(host[f"lora {number}"], batch)
        return self.lora[: len(rounds)]

    def _write_heads(
        self, host: dict[str, np.ndarray], shape: StepShape, lora: LoraBatch, rounds: list[StepLists]
    ) -> list[StepLists]:
        """Of the rows to draw from, where an adapter changes the head. A decode's rows are its tokens."""
        if HEAD not in lora.changed:
            return []
        if not shape.is_fixed:
            return self._lists_of(lora, shape.wanted[: shape.rows])
        if shape.is_decode:
            return rounds
        own = rounds_of_rows(lora, torch.from_numpy(shape.wanted))
        for number, lists in enumerate(self._heads[: len(rounds)]):
            lists.write(host[f"head {number}"], own[number] if number < len(own) else None)
        return self._heads[: len(rounds)]

    def _lists_of(self, lora: LoraBatch, rows: np.ndarray) -> list[StepLists]:
        return lists_of_rows(lora, torch.from_numpy(rows), self.lora[0])


def _fill_states(host: dict[str, np.ndarray], shape: StepShape, arrays: tuple[Ints, Ints, Ints, Ints]) -> None:
    """Padding is in the padding slot, and keeps nothing."""
    slots, starts, kept_tokens, kept_slots = arrays
    kept = len(kept_slots)
    assert not (kept and shape.is_decode), "what is kept ends before a token that draws"
    _fill(host["state_slots"], slots, shape.sequences, PADDING)
    _fill(host["kept_starts"], starts, shape.sequences + 1, kept)
    _fill(host["kept_tokens"], kept_tokens, kept, 0)
    _fill(host["kept_slots"], kept_slots, kept, PADDING)


def _fill(array: np.ndarray, values: np.ndarray | list[int], end: int, padding: int) -> None:
    array[: len(values)] = values
    array[len(values) : end] = padding
