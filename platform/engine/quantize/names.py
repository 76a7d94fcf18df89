"""What modules and tensors are called in the files that are written: as in those that were read."""

import re
from collections.abc import Iterator

from ..model.description.feed_forward import ExpertsSpec
from ..model.description.spec import ModelSpec
from ..model.expected import layer_path
from ..model.loader import Checkpoint


def module_name(checkpoint: Checkpoint, module: str) -> str:
    """Of a module with a weight, by our name."""
    return checkpoint.stored_name(f"{module}.weight").removesuffix(".weight")


def ignored_modules(spec: ModelSpec, checkpoint: Checkpoint) -> list[str]:
    """The linears besides the head that stay floats, as compressed-tensors lists them: those at the ends, by all their
    names, routers and gates of shared experts of any layer, and whatever is not served."""
    head = None if spec.head is None else spec.head.projection
    ends = [linear.path for linear in (spec.embedding.projection, head) if linear is not None]
    names = [name for path in ends for name in (path, module_name(checkpoint, path))]
    parts = {start.rstrip(".").rpartition(".")[2] for start in spec.left_out if checkpoint.left_out_from(start)}
    left = [rf"re:(.*\.)?{re.escape(part)}\..*" for part in sorted(parts)]
    return list(dict.fromkeys([*names, *_routers(spec, checkpoint), *left]))


def _routers(spec: ModelSpec, checkpoint: Checkpoint) -> Iterator[str]:
    """By what follows the number of a layer."""
    for number, layer in enumerate(spec.layers):
        if isinstance(layer.feed_forward, ExpertsSpec):
            for linear in layer.feed_forward.exact_linears():
                stored = module_name(checkpoint, f"{layer_path(spec, number)}{linear.path}")
                yield rf"re:.*\.{re.escape(stored.rpartition(f'.{number}.')[2])}$"
