"""LayerStatistics: what calibration saw at the inputs of a layer's linears.

Each expert has its own, of the tokens that went to it. They are worked out when they are asked for, and not kept: in
memory are what the experts of the layer read, once, and the statistics of one.
"""

from collections.abc import Iterator, Mapping

import torch

from loraplex.quant.calibrate.activations import InputStatistics

from ..model.description.feed_forward import ExpertsSpec, FeedForwardSpec
from ..model.layer_inputs import place_of
from .plain.forward import LayerForward, LayerTensors, routed_place


class LayerStatistics(Mapping[str, InputStatistics]):
    """By the place of an input. `add` is an Observe."""

    def __init__(self, forward: LayerForward, tensors: LayerTensors, rows: int, with_hessian: bool) -> None:
        """rows: how many will come; tensors: of the layer, float32."""
        self._forward, self._tensors, self._with_hessian = forward, tensors, with_hessian
        mixture = forward.spec.feed_forward
        self._mixture = mixture if isinstance(mixture, ExpertsSpec) else None
        exact = () if self._mixture is None else self._mixture.exact_linears()
        self._seen = {
            place_of(group): InputStatistics(group[0].inputs, rows, with_hessian=with_hessian)
            for group in forward.spec.linear_groups()
            if group[0] not in exact
        }
        self._experts = {} if self._mixture is None else dict(_places(self._mixture))
        self._read: list[torch.Tensor] = []
        """What all experts read, [tokens, C] on the CPU, of each batch."""
        self._routed: list[torch.Tensor] = []
        """Which experts it went to, [tokens, experts] bool."""

    def add(self, place: str, x: torch.Tensor) -> None:
        """x [tokens, in], float32."""
        if place in self._seen:
            self._seen[place].add(x)
        elif self._mixture is not None and place == self._mixture.path:
            self._read.append(x.cpu())
        elif self._mixture is not None and place == routed_place(self._mixture):
            self._routed.append((x != 0).cpu())

    def __getitem__(self, place: str) -> InputStatistics:
        if place in self._seen:
            return self._seen[place]
        number, expert, is_output = self._experts[place]
        pairs = zip(self._read, self._routed, strict=True)
        x = torch.cat([read[routed[:, number]] for read, routed in pairs]).to(self._forward.device)
        if is_output:
            x = self._forward.inner(self._tensors, expert, x[None])[0]
        statistics = InputStatistics(x.shape[1], len(x), with_hessian=self._with_hessian)
        statistics.add(x)
        return statistics

    def __iter__(self) -> Iterator[str]:
        yield from self._seen
        yield from self._experts

    def __len__(self) -> int:
        return len(self._seen) + len(self._experts)


def _places(mixture: ExpertsSpec) -> Iterator[tuple[str, tuple[int, FeedForwardSpec, bool]]]:
    """As layer_inputs names them -> number of the expert, itself, and whether its last linear reads there."""
    for number, expert in enumerate(mixture.experts()):
        yield expert.inputs[0].path, (number, expert, False)
        yield expert.output.path, (number, expert, True)
