"""CpuDeltaNet: the states of all sequences in the host's memory, and the numba kernels that bring them on."""

from typing import Final

import numpy as np
import torch

from ..batch import Batch
from ..kernels.arrays import as_array
from ..kernels.vector import LANES
from .backend import DeltaWeights, Projections
from .kernels import mix
from .kernels.convolve import Sequences, convolve, norm_heads
from .kernels.recur import Layer, recur
from .reference import mix_sequence
from .shape import StateShape

MOST_COLUMNS: Final = 4
"""Vectors of a row of the state: with 128 rows a block takes 32 KiB, the nearest cache of most processors."""


class CpuDeltaNet:
    """DeltaNetBackend for float32 projections. Head sizes that are no multiple of 16 go the reference's way."""

    def __init__(self, shape: StateShape, layers: int, slots: int) -> None:
        self.shape = shape
        heads = (shape.num_value_heads, shape.key_head_dim, shape.value_head_dim)
        # numpy takes zeros from the system: what no sequence ever comes to takes no memory.
        self._conv = torch.from_numpy(np.zeros((layers, slots, shape.conv_kernel - 1, shape.channels), np.float32))
        self._recurrent = torch.from_numpy(np.zeros((layers, slots, *heads), np.float32))
        self.has_kernels = shape.key_head_dim % LANES == shape.value_head_dim % LANES == 0
        """Whether heads are whole vectors."""
        vectors = max(1, shape.value_head_dim // LANES)
        self._columns = (0,) * max(count for count in range(1, MOST_COLUMNS + 1) if vectors % count == 0)
        self._workers = torch.get_num_threads()
        self._batch: Batch | None = None
        self._step: Sequences | None = None
        self._fields: np.ndarray | None = None

    def mix(self, layer: int, projections: Projections, weights: DeltaWeights, batch: Batch) -> torch.Tensor:
        if not self.has_kernels:
            return self._mix_by_torch(layer, projections, weights, batch)
        step, mixed = self._sequences(batch), torch.empty_like(projections.qkv)
        conv, recurrent = self._conv[layer].numpy(), self._recurrent[layer].numpy()
        convolve(
            as_array(projections.qkv), as_array(weights.conv), conv, step, as_array(mixed), _counter(), self._workers
        )
        norm_heads(as_array(mixed), self.shape.num_key_heads, self.shape.key_head_dim, self._workers)
        output = torch.empty_like(projections.gate)
        read = Layer(
            mixed=as_array(mixed),
            gate=as_array(projections.gate),
            beta=as_array(projections.beta),
            step=as_array(projections.step),
            decay=as_array(weights.decay),
            dt_bias=as_array(weights.dt_bias),
            norm=as_array(weights.norm),
            eps=np.float32(weights.eps),
        )
        recur(read, recurrent, step, self._columns, as_array(output), _counter(), self._workers)
        return output

    def fields(self, batch: Batch) -> np.ndarray:
        """What kernels/mix.py takes of this step, for callers that are compiled themselves; good until the next one."""
        step, shape = self._sequences(batch), self.shape
        if self._fields is None:
            self._fields = np.zeros(mix.FIELDS, np.int64)
            arrays = (self._conv, self._recurrent)
            sizes = (shape.conv_kernel, shape.num_key_heads, shape.num_value_heads, shape.key_head_dim)
            self._fields[mix.KERNEL] = mix.kernel_address(len(self._columns))
            self._fields[mix.CONV_STATES : mix.STATES + 1] = [tensor.data_ptr() for tensor in arrays]
            self._fields[mix.SLOT_COUNT : mix.KEY_DIM + 1] = self._conv.shape[1], *sizes
            self._fields[mix.VALUE_DIM : mix.WORKERS + 1] = shape.value_head_dim, self._workers
        self._fields[mix.QUERY_STARTS : mix.KEPT_SLOTS + 1] = [array.ctypes.data for array in step]
        self._fields[mix.SEQUENCES : mix.KEPT + 1] = len(step.slots), len(step.kept_slots)
        return self._fields

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._conv[:, destination] = self._conv[:, source]
            self._recurrent[:, destination] = self._recurrent[:, source]

    def state(self, layer: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a slot: last inputs of the convolution, oldest first, and the recurrent state [H, E, D]."""
        return self._conv[layer, slot], self._recurrent[layer, slot]

    def state_bytes(self) -> int:
        return self._conv.nbytes + self._recurrent.nbytes

    def _sequences(self, batch: Batch) -> Sequences:
        """What the kernels take of this step, made once and shared by every layer."""
        if self._step is None or self._batch is not batch:
            states = batch.states
            assert states is not None
            starts = batch.query_starts.numpy()
            fresh = batch.positions.numpy()[starts[:-1]] == 0
            arrays = states.slots, states.kept_starts, states.kept_tokens, states.kept_slots
            slots, *kept = (array.numpy() for array in arrays)
            self._batch, self._step = batch, Sequences(starts, fresh, slots, *kept)
        return self._step

    def _mix_by_torch(self, layer: int, projections: Projections, weights: DeltaWeights, batch: Batch) -> torch.Tensor:
        step, output = self._sequences(batch), torch.empty_like(projections.gate)
        conv, recurrent = self._conv[layer], self._recurrent[layer]
        for sequence, slot in enumerate(step.slots.tolist()):
            first, last = step.query_starts[sequence : sequence + 2].tolist()
            part = Projections(
                projections.qkv[first:last], projections.gate[first:last], projections.beta[first:last],
                projections.step[first:last],
            )  # fmt: skip
            state = conv[slot], recurrent[slot]
            if step.fresh[sequence]:
                state = torch.zeros_like(state[0]), torch.zeros_like(state[1])
            output[first:last], states = mix_sequence(part, weights, self.shape, state)
            for kept in range(*step.kept_starts[sequence : sequence + 2].tolist()):
                target = int(step.kept_slots[kept])
                conv[target], recurrent[target] = states[int(step.kept_tokens[kept]) - first]
            conv[slot], recurrent[slot] = states[-1]
        return output


def _counter() -> np.ndarray:
    return np.zeros(1, np.int64)
