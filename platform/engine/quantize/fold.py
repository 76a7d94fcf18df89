"""Where AWQ's scales go: an input of a layer's linears is multiplied by them, and what makes it is divided.

`LayerInput.maker` says what that is. An input that nothing makes alone keeps its size.
"""

from collections.abc import Mapping, Sequence

import torch

from ..model.description.spec import NormSpec
from ..model.layer_inputs import LayerInput

_ALL = slice(None)


def storable_scales(
    scales: torch.Tensor, norm: torch.Tensor, stored: torch.dtype, adds_one: bool = False
) -> torch.Tensor:
    """The scales [in] nearest to these by which a norm can be divided so that its weight is stored without rounding.

    norm [in]: its weight, which counts from 1 where it `adds_one`.
    """
    origin = 1.0 if adds_one else 0.0
    own = norm + origin
    folded = (own / scales - origin).to(stored).to(norm.dtype) + origin
    return torch.where(folded * own > 0, own / folded, 1.0)


def folded(
    name: str,
    tensor: torch.Tensor,
    scales: Mapping[str, torch.Tensor],
    inputs: Sequence[LayerInput],
    rows: slice = _ALL,
) -> torch.Tensor:
    """The layer's tensor `name`, of which these are the `rows`, once the inputs [in] at the places of `scales` are
    multiplied and what makes them is divided: with all its tensors folded the layer computes the same."""
    module, _, kind = name.rpartition(".")
    for at in (at for at in inputs if at.place in scales):
        if kind == "weight" and any(linear.path == module for linear in at.linears):
            tensor = tensor * scales[at.place]
        if at.maker is not None and at.maker.path == module:
            outputs = at.made_by(scales[at.place])[rows]
            origin = 1.0 if kind == "weight" and isinstance(at.maker, NormSpec) and at.maker.adds_one else 0.0
            tensor = (tensor + origin) / (outputs if tensor.ndim == 1 else outputs[:, None]) - origin
    return tensor
