"""What an adapter's vectors mean beside the base they are served on: y = gain * (W x + b + delta x) + shift.

DoRA (Liu et al. 2024): the result is b + m / ||W + delta|| * (W + delta) x, norms over the inputs of each output. So
    gain  = m / ||W + delta||
    shift = bias - gain * b        where `bias` is the trained one, or b
"""

from collections.abc import Generator
from typing import Final, Protocol

import torch

from ..files.manifest import ModuleLora
from ..files.token_rows import StoredRows

FROM_BASE: Final = frozenset({"magnitude", "bias"})
"""Roles whose meaning depends on the base's weights."""


CHUNK: Final = 256
"""Inputs looked at together; even, as the base's linears ask."""
TURN: Final = 1 << 22
"""Weights looked at before others have their turn: some milliseconds."""


class BaseModules(StoredRows, Protocol):
    """The base's modules as they are served: what is stored in few bits counts as what it stands for."""

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        """W[:, first:last]^T as [last - first, out] float32; `first` is even. The embedding multiplies unit vectors."""

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        """[out] float32, of a linear or a norm; zeros where there is none."""

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        """The weight of a norm, float32."""


def needs_base(module: ModuleLora) -> bool:
    return any(vector.role in FROM_BASE for vector in module.vectors)


def finish_module(
    module: ModuleLora, a: torch.Tensor, b: torch.Tensor, vectors: torch.Tensor, base: BaseModules
) -> Generator[None, None, torch.Tensor]:
    """Turn magnitudes into gains and trained biases into shifts, in `vectors` [2, out] float32. Returns [] bool, where
    the vectors are: whether every output has a weight that can be scaled; whoever asks a device waits for it.

    a [rank, in] and b [rank, out] as they are served; `vectors` as load_pages leaves them. Yields when running requests
    should have their turn.
    """
    roles = {vector.role for vector in module.vectors}
    own_bias = base.bias(module.layer, module.kind)
    gain, shift = vectors
    own_bias = own_bias.to(shift.device)
    if "magnitude" in roles:
        gain /= yield from _norms(module, a.float(), b.float(), base)
    if "bias" not in roles:
        shift += own_bias
    shift -= gain * own_bias
    yield
    scalable: torch.Tensor = gain.isfinite().all()
    return scalable


def _norms(
    module: ModuleLora, a: torch.Tensor, b: torch.Tensor, base: BaseModules
) -> Generator[None, None, torch.Tensor]:
    """||W + delta|| of each row [out], some columns at a time."""
    squares = torch.zeros(b.shape[1], dtype=torch.float64, device=b.device)
    looked_at = 0
    for first in range(0, a.shape[1], CHUNK):
        last = min(first + CHUNK, a.shape[1])
        delta = module.scaling * (a[:, first:last].T @ b)
        squares += (base.columns(module.layer, module.kind, first, last) + delta).double().square().sum(0)
        looked_at += delta.numel()
        if looked_at > TURN:
            looked_at = 0
            yield
    return squares.sqrt().float()
