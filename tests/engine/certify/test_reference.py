"""The reference against transformers + peft: every kind of adapter that is served."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.certify.certificate import CertifyJob
from loraplex.engine.certify.inputs import open_adapter, open_reference, table_length
from loraplex.engine.certify.merged import MergedAdapter
from loraplex.engine.certify.prompts import Prompt
from loraplex.engine.certify.reference import Reference
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.scheduler.activation import find_start
from tests.checkpoints import make_adapter, make_checkpoint, reference_model
from tests.engine.model.test_kinds import GROWN, KINDS, TRAINED, VOCABULARIES, WITH_BIASES, Kind, invoke, offsets

TOLERANCE = 1e-4
FAMILIES: dict[str, Mapping[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 9},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
}
PROMPTS = [[0, *range(40, 70), TRAINED], [9, 8, TRAINED, 5], list(range(100, 120))]


@torch.inference_mode()
def reference_logits(base: Path, adapter: Path | None, prompts: list[list[int]]) -> torch.Tensor:
    """[R, V] of all tokens but each prompt's last."""
    job = CertifyJob(EngineConfig(model=str(base)), adapter=None if adapter is None else str(adapter))
    files = open_reference(job, ModelConfig.from_folder(base))
    with ExitStack() as scratch:
        opened = open_adapter(job, files.signature, scratch)
        merged = MergedAdapter.none() if opened is None else opened.merged()
        tokens = () if opened is None else opened.manifest.invocation_tokens
        made = [Prompt(prompt, find_start(prompt, tokens) or 0) for prompt in prompts]
        length = table_length(files.config, job.engine)
        reference = Reference(files.config, files.checkpoint, merged, made, length)
        for layer in range(files.config.num_layers):
            reference.advance(layer)
        return reference.head().logits(*reference.outputs())


@torch.inference_mode()
def peft_logits(base: Path, adapter: Path | None, prompts: list[list[int]], vocab: int | None) -> torch.Tensor:
    model = reference_model(base, {} if adapter is None else {"some": adapter}, vocab)
    answers = [model(input_ids=torch.tensor([prompt]), **offsets(model, prompt, 0)) for prompt in prompts]
    return torch.cat([answer.logits[0, :-1] for answer in answers])


def assert_same(base: Path, adapter: Path | None, vocab: int | None = None) -> None:
    prompts = [prompt + list(range(320, vocab)) if vocab == GROWN else prompt for prompt in PROMPTS]
    prompts = [invoke(prompt, adapter) for prompt in prompts]
    expected, found = peft_logits(base, adapter, prompts, vocab), reference_logits(base, adapter, prompts)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < TOLERANCE * max(1.0, float(expected.abs().max()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_base_equals_transformers(folders: Path, family: str) -> None:
    assert_same(make_checkpoint(folders / family, family, **FAMILIES[family]), None)


def test_an_activated_head_is_the_bases_before_its_tokens(folders: Path, tmp_path: Path) -> None:
    base = make_checkpoint(folders / "untied", "llama")
    adapter = make_adapter(tmp_path / "adapter", base, kinds=("lm_head", "o_proj"), alora_invocation_tokens=[310])
    assert_same(base, adapter)


@pytest.mark.parametrize(
    "name,family",
    [*((name, "llama") for name in (*KINDS, *WITH_BIASES)), *((name, "qwen3") for name in KINDS)],  # it has no biases
)
def test_an_adapter_equals_peft(folders: Path, tmp_path: Path, family: str, name: str) -> None:
    base = folders / f"{family}-base"
    if not base.is_dir():
        make_checkpoint(base, family, **FAMILIES[family])
    kind: Kind = (KINDS | WITH_BIASES)[name]
    assert_same(base, kind.make(tmp_path / "adapter", base, 3), VOCABULARIES.get(name))
