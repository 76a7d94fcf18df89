"""The reference against transformers + peft: every kind of adapter that a certificate covers."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.certificate import CertifyJob
from loraplex.engine.certify.inputs import open_adapter, open_reference
from loraplex.engine.certify.merged import MergedAdapter
from loraplex.engine.certify.reference import Reference
from loraplex.engine.model.config import ModelConfig
from tests.checkpoints import make_checkpoint, reference_model
from tests.engine.model.test_kinds import GROWN, KINDS, TRAINED, VOCABULARIES, WITH_BIASES, Kind

TOLERANCE = 1e-4
FAMILIES: dict[str, Mapping[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 9},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
}
PLAIN = {name: kind for name, kind in KINDS.items() if "alora" not in name}
BIASED = {name: kind for name, kind in WITH_BIASES.items() if "alora" not in name}
PROMPTS = [[0, *range(40, 70), TRAINED], [9, 8, TRAINED, 5], list(range(100, 120))]


@torch.inference_mode()
def reference_logits(base: Path, adapter: Path | None, prompts: list[list[int]]) -> list[torch.Tensor]:
    """[L - 1, V] of each prompt."""
    job = CertifyJob(str(base), adapter=None if adapter is None else str(adapter))
    files = open_reference(job, ModelConfig.from_folder(base))
    with ExitStack() as scratch:
        opened = open_adapter(job, files.signature, scratch)
        merged = MergedAdapter.none() if opened is None else opened.merged()
        reference = Reference(files.config, files.checkpoint, merged, prompts)
        for layer in range(files.config.num_layers):
            reference.advance(layer)
        head = reference.head()
        return [head.logits(reference.hidden(number)) for number in range(len(prompts))]


@torch.inference_mode()
def peft_logits(base: Path, adapter: Path | None, prompts: list[list[int]], vocab: int | None) -> list[torch.Tensor]:
    model = reference_model(base, {} if adapter is None else {"some": adapter}, vocab)
    return [model(input_ids=torch.tensor([prompt])).logits[0, :-1] for prompt in prompts]


def assert_same(base: Path, adapter: Path | None, vocab: int | None = None) -> None:
    prompts = [prompt + list(range(320, vocab)) if vocab == GROWN else prompt for prompt in PROMPTS]
    expected, found = peft_logits(base, adapter, prompts, vocab), reference_logits(base, adapter, prompts)
    for wanted, got in zip(expected, found, strict=True):
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() < TOLERANCE


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_base_equals_transformers(folders: Path, family: str) -> None:
    assert_same(make_checkpoint(folders / family, family, **FAMILIES[family]), None)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("name", [*PLAIN, *BIASED])
def test_an_adapter_equals_peft(folders: Path, tmp_path: Path, family: str, name: str) -> None:
    if name in BIASED and family == "qwen3":
        pytest.skip("this base has no biases")
    base = folders / f"{family}-base"
    if not base.is_dir():
        make_checkpoint(base, family, **FAMILIES[family])
    kind: Kind = (PLAIN | BIASED)[name]
    assert_same(base, kind.make(tmp_path / "adapter", base, 3), VOCABULARIES.get(name))
