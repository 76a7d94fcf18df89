"""What adapters ask of the base's modules."""

from types import SimpleNamespace
from typing import Any

import torch

from loraplex.engine.model.base_modules import DecoderModules
from loraplex.engine.model.decoder import Embedding
from loraplex.lora.files.manifest import EMBEDDING


def test_an_embedding_on_a_device_is_read_from_its_file() -> None:
    """The copy back would be one of the stream of the steps, for a thread that loads adapters."""
    rows = torch.randn(5, 4).bfloat16()
    decoder: Any = SimpleNamespace(
        embedding=Embedding(rows.to("meta"), torch.float32), layers=[], norm=None, projections=list
    )
    checkpoint: Any = SimpleNamespace(tensor={"model.embed_tokens.weight": rows}.__getitem__)
    config: Any = SimpleNamespace(spec=SimpleNamespace(embedding=SimpleNamespace(path="model.embed_tokens")))
    modules = DecoderModules(decoder, checkpoint, config)
    bits, dtype = modules.stored_rows(EMBEDDING)
    assert dtype == "BF16" and (bits == rows.view(torch.int16).numpy().view("u2")).all()
    assert modules.bias(0, EMBEDDING).device.type == "meta"
