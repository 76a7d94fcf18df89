"""CudaDeltaNet: the states of all sequences on a CUDA device, and the triton kernels that bring them on."""

import torch

from ..batch import Batch
from .backend import DeltaWeights, Projections
from .kernels.cuda.launch import Layer, Sequences, mix_packed
from .shape import StateShape


class CudaDeltaNet:
    """DeltaNetBackend. No call waits for the device or reads from it, and a captured step replays right when the
    contents of a batch's tensors change. Padding belongs to sequences without tokens, or to the padding slot."""

    def __init__(self, shape: StateShape, layers: int, slots: int, device: torch.device | str = "cuda") -> None:
        heads = (shape.num_value_heads, shape.key_head_dim, shape.value_head_dim)
        self._conv = torch.zeros(layers, slots, shape.conv_kernel - 1, shape.channels, device=device)
        self._recurrent = torch.zeros(layers, slots, *heads, device=device)

    def mix(self, layer: int, projections: Projections, weights: DeltaWeights, batch: Batch) -> torch.Tensor:
        states = batch.states
        assert states is not None
        step = Sequences(
            batch.query_starts,
            batch.positions,
            states.slots,
            states.kept_starts,
            states.kept_tokens,
            states.kept_slots,
        )
        read = Layer(
            weights.conv,
            weights.decay,
            weights.dt_bias,
            weights.norm,
            weights.eps,
            self._conv[layer],
            self._recurrent[layer],
        )
        return mix_packed(projections.qkv, projections.gate, projections.beta, projections.step, read, step)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._conv[:, destination] = self._conv[:, source]
            self._recurrent[:, destination] = self._recurrent[:, source]

    def state(self, layer: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a slot: last inputs of the convolution, oldest first, and the recurrent state [H, E, D]."""
        return self._conv[layer, slot], self._recurrent[layer, slot]

    def state_bytes(self) -> int:
        return self._conv.nbytes + self._recurrent.nbytes
