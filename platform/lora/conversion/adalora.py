"""AdaLoRA: delta = B diag(E) A * alpha / (initial rank + 1e-5), a rank whose E is 0 having been dropped in training."""

from typing import Final

import numpy as np

from .factors import Change, Unfit, thin
from .source import Module, Shapes

PARTS: Final = frozenset({"lora_A", "lora_B", "lora_E"})
_BESIDE_ZERO: Final = 1e-5
"""What PEFT adds to the rank that it divides by."""


def shapes(module: Module) -> Shapes:
    rank = module.shape("lora_E")[0]
    if rank > module.rank:
        raise Unfit(f"has rank {rank}, adapter_config.json begins with init_r {module.rank}")
    return {"lora_E": (rank, 1), "lora_A": (rank, module.inputs), "lora_B": (module.outputs, rank)}


def change(module: Module) -> Change:
    """The ranks that training has left, each as it is. No rank at all where it has dropped every one."""
    values, right, left = module.read("lora_E"), module.read("lora_A"), module.read("lora_B")
    rank = len(values)
    alpha = module.scaling * module.rank
    scaling = (alpha if alpha > 0 else rank) / (module.rank + _BESIDE_ZERO)
    kept = np.flatnonzero(values)
    return thin(left[:, kept] * scaling, (right * values)[kept])
