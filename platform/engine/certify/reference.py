"""Reference: the unquantized model with the adapter in its weights, on whole prompts, in float32, a layer at a time.

It shares nothing with the served path but configurations, rotary tables and the names of tensors.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from ..model.config import ModelConfig
from ..model.description.modules import module_table
from ..model.description.spec import AttentionSpec, LinearSpec, NormSpec
from ..model.loader import Checkpoint
from ..quantize.ends import End, Linear, embed_tokens, token_inputs
from ..quantize.float_layers import stored_layer
from ..quantize.plain.forward import Beside, KeysAndValues, LayerTensors, layer_forward, plain_linear
from .merged import MergedAdapter
from .prompts import Prompt

HEAD_ROWS: Final = 16384
"""Of the vocabulary at a time: a head in float32 can be larger than a layer."""
CPU: Final = torch.device("cpu")


class Reference:
    """`advance` through every layer in order, then ask for `logits`. Prompts of L tokens; C hidden size."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        adapter: MergedAdapter,
        prompts: Sequence[Prompt],
        length: int,
    ) -> None:
        """`length`: positions of rotary tables; at least those of the longest prompt."""
        self._config, self._checkpoint, self._adapter = config, checkpoint, adapter
        self._starts = [prompt.start for prompt in prompts]
        self._read_by_others = config.spec.read_by_others()
        self._length = length
        self._kinds = module_table(config.spec).kinds
        embedding = adapter.embedding(checkpoint.tensor(f"{config.spec.embedding.path}.weight"))
        embed = partial(embed_tokens, config.spec, checkpoint, embedding)
        token_ids = [torch.tensor([prompt.token_ids]) for prompt in prompts]
        made = zip(token_ids, self._end_linears(config.spec.embedding.projection), strict=True)
        self._hidden = [embed(ids, linear) for ids, linear in made]
        self._given = self._token_inputs(token_ids)
        self._keys: list[dict[int, KeysAndValues]] = [{} for _ in prompts]
        """By prompt and layer, of the layers whose keys and values others read."""

    def advance(self, layer: int) -> None:
        """All prompts through the next layer."""
        base = {
            name: tensor.float() for name, tensor in stored_layer(self._config.spec, self._checkpoint, layer).items()
        }
        adapted, forward = self._adapted(layer, base), layer_forward(self._config.spec.layers[layer], self._length)
        for number, (hidden, start) in enumerate(zip(self._hidden, self._starts, strict=True)):
            split = replace(forward, linear=partial(_linear_from, start, base)) if start else forward
            beside = self._beside(number, layer)
            self._hidden[number] = split.apply(adapted, hidden, beside=beside)
            if layer in self._read_by_others and beside.keys_and_values is not None:
                self._keys[number][layer] = beside.keys_and_values

    def _beside(self, prompt: int, layer: int) -> Beside:
        mixer, given = self._config.spec.layers[layer].mixer, self._given[prompt]
        source = mixer.keys_of if isinstance(mixer, AttentionSpec) else None
        return Beside(None if given is None else given[layer], None if source is None else self._keys[prompt][source])

    def _token_inputs(self, token_ids: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Of each prompt."""
        own = self._config.spec.token_inputs
        linears = self._end_linears(None if own is None else own.projection)
        prompts = zip(linears, token_ids, self._hidden, strict=True)
        return [token_inputs(self._config.spec, self._checkpoint, *each) for each in prompts]

    def _end_linears(self, spec: LinearSpec | None) -> list[Linear]:
        """A linear at an end of the model, for each prompt."""
        before, after = ({}, {}) if spec is None else self._end_linear(spec)
        return [partial(_linear_from, start, before, after) for start in self._starts]

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """After the last layer, prompt after prompt: what predicts every token but each one's first, [R, C], and
        whether the adapter acts there, [R] bool."""
        hidden = torch.cat([hidden[0, :-1] for hidden in self._hidden])
        places = zip(self._starts, self._hidden, strict=True)
        return hidden, torch.cat([torch.arange(hidden.shape[1] - 1) >= start for start, hidden in places])

    def head(self) -> "ReferenceHead":
        spec = self._config.spec
        assert spec.head is not None
        before = End.read(spec, self._checkpoint, CPU)
        if spec.norm is not None:
            path, stored = spec.norm.path, before.tensors
            own = self._adapter.norm(0, self._kinds[None, path], stored[f"{path}.weight"], stored.get(f"{path}.bias"))
            before = replace(before, tensors={**stored, **_named(path, *own)})
        end = before
        if spec.head.projection is not None:
            _, adapted = self._end_linear(spec.head.projection)
            end = replace(before, tensors={**before.tensors, **adapted})
        names = (f"{spec.head.path}.weight", f"{spec.embedding.path}.weight")
        head = self._checkpoint.tensor(next(name for name in names if name in self._checkpoint))
        return ReferenceHead((before, end), head, *self._adapter.head(head))

    def _end_linear(self, spec: LinearSpec) -> tuple[LayerTensors, LayerTensors]:
        """A linear at an end of the model, as it is stored and with the adapter in it."""
        weight = self._checkpoint.tensor(f"{spec.path}.weight").float()
        own = self._adapter.linear(0, spec.kind, weight, None)
        return {f"{spec.path}.weight": weight}, _named(spec.path, *own)

    def _adapted(self, layer: int, base: LayerTensors) -> dict[str, torch.Tensor]:
        """The layer's tensors with the adapter in them."""
        spec, tensors = self._config.spec.layers[layer], dict(base)
        modules: list[LinearSpec | NormSpec] = [*spec.linears(), *spec.expert_linears(), *spec.norms()]
        for module in modules:
            change = self._adapter.norm if isinstance(module, NormSpec) else self._adapter.linear
            path, kind = module.path, self._kinds[layer, module.path]
            tensors |= _named(path, *change(layer, kind, base[f"{path}.weight"], base.get(f"{path}.bias")))
        return tensors


class ReferenceHead:
    """The last norm and the output head."""

    def __init__(
        self,
        ends: tuple[End, End],
        base: torch.Tensor,
        adapted: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """ends: where no adapter acts, and where it does; one object where that changes nothing. heads [V, C] in any
        float dtype, alike; bias [V] of the adapted one, float32."""
        self._ends, self._base, self._adapted, self._bias = ends, base, adapted, bias

    def logits(self, hidden: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """hidden [R, C] float32 -> [R, V] float32; `active` [R] bool: where the adapter acts."""
        before, end = self._ends
        logits = _multiply(end.rows(hidden), self._adapted)
        logits = logits if self._bias is None else logits + self._bias
        if (self._adapted is self._base and before is end) or bool(active.all()):
            return end.logits(logits)
        return end.logits(torch.where(active[:, None], logits, _multiply(before.rows(hidden), self._base)))


def _named(path: str, weight: torch.Tensor, bias: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {f"{path}.weight": weight} | ({} if bias is None else {f"{path}.bias": bias})


def _linear_from(start: int, before: LayerTensors, tensors: LayerTensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """An activated LoRA: up to `start` the tokens of x [S, L, in] read the base's weight."""
    return torch.cat([plain_linear(before, name, x[:, :start]), plain_linear(tensors, name, x[:, start:])], dim=1)


def _multiply(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ rows.float().T for rows in torch.split(head, HEAD_ROWS)], dim=1)
