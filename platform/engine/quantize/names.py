"""What modules and tensors are called in the files that are written: as in those that were read."""

import re

from ..model.description.spec import ModelSpec
from ..model.loader import Checkpoint


def module_name(checkpoint: Checkpoint, module: str) -> str:
    """Of a module with a weight, by our name."""
    return checkpoint.stored_name(f"{module}.weight").removesuffix(".weight")


def ignored_modules(spec: ModelSpec, checkpoint: Checkpoint) -> list[str]:
    """The linears besides the head that stay floats, as compressed-tensors lists them: those at the ends, by all their
    names, and whatever is not served."""
    head = None if spec.head is None else spec.head.projection
    ends = [linear.path for linear in (spec.embedding.projection, head) if linear is not None]
    names = [name for path in ends for name in (path, module_name(checkpoint, path))]
    parts = {start.rstrip(".").rpartition(".")[2] for start in spec.left_out if checkpoint.left_out_from(start)}
    return list(dict.fromkeys([*names, *(rf"re:(.*\.)?{re.escape(part)}\..*" for part in sorted(parts))]))
