"""Whether a model loads in so much memory, for a process of its own (memory_limit.py)."""

from pathlib import Path

import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.quant.schemes.choose import choose_scheme
from loraplex.quant.weights.online import OnlineQuantization

from ..memory_limit import is_enough, layer_bytes


def loads_within(base: str, linears: str, head: str, layers: list[int]) -> list[bool]:
    """Whether `base` loads in its served size and so many float layers more."""
    checkpoint = Checkpoint(Path(base), ModelConfig.from_folder(base).spec)  # its mapped files count from here on
    served = _load(checkpoint, linears, head).weight_bytes()  # and all that is made once is there afterwards
    return [is_enough(served + more * layer_bytes(base), lambda: _load(checkpoint, linears, head)) for more in layers]


def _load(checkpoint: Checkpoint, linears: str, head: str) -> Decoder:
    scheme, online = choose_scheme(torch.device("cpu"), torch.bfloat16), OnlineQuantization(linears, head)
    config = ModelConfig.from_folder(checkpoint.folder)
    return DecoderLoader(config, checkpoint, scheme, torch.bfloat16, online).load(64)
