"""Checkpoints and adapters of other families; cuda_engine_cases.py has an engine's rows."""

import sys

import pytest
import torch

from benchmarks.gpu.families import family_adapters, family_rows
from benchmarks.gpu.figure import Unsupported
from benchmarks.gpu.models import workplace

from .tiny import FAMILIES, tiny_stage


def test_adapters_share_weights_and_differ() -> None:
    family, device = FAMILIES[0], torch.device("cpu")
    place = workplace(family.bytes)
    folders = family_adapters(family, 8, 3, device, place)
    weights = {(folder / "adapter_model.safetensors").stat().st_ino for folder in folders}
    configs = {(folder / "adapter_config.json").read_text() for folder in folders}
    assert len(weights) == 1 and len(configs) == 3
    assert family_adapters(family, 8, 3, device, place) == folders


def test_a_machine_whose_transformers_lacks_the_family_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.family_checkpoints", None)
    with pytest.raises(Unsupported, match="its checkpoint cannot be made here: "):
        family_rows(FAMILIES[1], tiny_stage())
