"""Certificates on CUDA's path against the CPU's, in triton's interpreter: ../test_cuda_interpreted.py runs this."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from loraplex.engine.certify.certificate import Certificate, CertifyJob, Coverage
from loraplex.engine.certify.on_cuda import OnCuda
from loraplex.engine.certify.run import certify
from loraplex.engine.device.arithmetic import computing_here
from loraplex.engine.model.config import base_signature
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.engine.startup.scales_file import ScalesFile, write_scales_file
from tests.checkpoints import make_adapter, make_checkpoint
from tests.engine.cuda.recurrent_cases import HYBRID
from tests.engine.cuda_engine import TINY, cuda, small_config
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

__all__ = ["cuda", "one_patch_a_module", "poisoned_memory", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")

PROMPTS = ["The quick brown fox", "Select name;"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", num_hidden_layers=2, **TINY)


def on_both(base: Path, adapter: Path, reference: Path | None = None, **settings: Any) -> tuple[Certificate, ...]:
    jobs = [
        CertifyJob(
            small_config(base, device=device, kv_cache_dtype="fp8_e4m3", **settings),
            None if reference is None else str(reference),
            str(adapter),
            prompts=PROMPTS,
        )
        for device in ("cpu", "cuda")
    ]
    certificates = tuple(certify(job) for job in jobs)
    for job, certificate in zip(jobs, certificates, strict=True):
        computing, coverage = computing_here(job.engine), certificate.coverage
        assert (coverage.arithmetic, coverage.runtime) == (computing.arithmetic, computing.runtime)
    return certificates


def assert_alike(one: Certificate, other: Certificate, within: float = 1e-3) -> None:
    """The reference and the row of the cache alone are always the CPU's. `within`: of the perplexity."""
    assert other.kv_cache == one.kv_cache and other.reference_perplexity == one.reference_perplexity
    assert one.both.mean_kl > 1e-4
    for found, wanted in ((other.weights, one.weights), (other.both, one.both)):
        assert found.top1_agreement == wanted.top1_agreement
        assert found.mean_kl == pytest.approx(wanted.mean_kl, rel=0.05)
        assert found.perplexity == pytest.approx(wanted.perplexity, rel=within)
    names = [part.name for part in fields(Coverage)]
    different = [name for name in names if getattr(one.coverage, name) != getattr(other.coverage, name)]
    assert different == ["arithmetic", "runtime"]
    assert other.coverage.arithmetic == "cuda kernels on cpu"
    assert other.coverage.runtime == {"torch": torch.__version__, "triton": triton.__version__}


@pytest.mark.parametrize("ends", [False, True], ids=["linears", "ends"])
def test_a_certificate_of_cudas_path_says_what_the_cpus_says(base: Path, tmp_path: Path, ends: bool) -> None:
    """In float32 they compute the same."""
    settings: dict[str, Any] = {"rank": 8, "seed": 1}
    if ends:
        settings = {"rank": 4, "seed": 4, "kinds": ("v_proj", "lm_head"), "use_dora": True}
    adapter = make_adapter(tmp_path / "adapter", base, **settings)
    assert_alike(*on_both(base, adapter, quantization="int8"))


def test_awq_static_scales_and_an_adapter_that_begins_late_are_certified_as_on_a_cpu(tmp_path: Path) -> None:
    """Linears that divide their inputs and multiply codes, keys and values that are clipped, and an adapter that acts
    from the middle of each prompt, in float16: each of them would be told by figures of its own."""
    sizes = TINY | {"intermediate_size": 64}
    base = make_checkpoint(tmp_path / "base", "qwen2", num_hidden_layers=2, **sizes)
    quantize_checkpoint(base, tmp_path / "awq", QuantizeOptions(scheme="awq", group_size=32, calibration_tokens=1536))
    scale = torch.full((TINY["num_key_value_heads"],), 2.0**-9)
    tensors = {f"model.layers.{layer}.self_attn.{part}_scale": scale.clone() for layer in (0, 1) for part in "kv"}
    file = tmp_path / "kv_scales.safetensors"
    write_scales_file(file, ScalesFile(tensors, base_signature(tmp_path / "awq").fingerprint, "fp8_e4m3", ()))
    adapter = make_adapter(tmp_path / "late", base, rank=4, seed=6, alora_invocation_tokens=[310])
    one, other = on_both(tmp_path / "awq", adapter, base, dtype="float16", kv_scales_file=str(file))
    # Where float16 sums end on the other side of a step of e4m3, a key differs by 6 %; each part of this moves 5 %.
    assert_alike(one, other, within=0.01)
    assert "compressed-tensors" in other.coverage.quantization and ", scales " in other.coverage.kv_cache_dtype
    assert 1e-3 < one.weights.mean_kl < one.both.mean_kl / 2, "both roundings show"


def test_states_of_recurrent_layers_are_certified_as_on_a_cpu(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen3_5", **(TINY | HYBRID))
    adapter = make_adapter(tmp_path / "adapter", base, rank=4, seed=2, kinds=("in_proj_qkv", "in_proj_b", "out_proj"))
    assert_alike(*on_both(base, adapter, quantization="int8"))


def test_a_card_without_room_for_a_certificate_says_what_to_change(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(OnCuda, "cache", fail)
    with pytest.raises(ValueError, match=r"as a certificate was measured.* lower gpu_memory_utilization, now 0\.9, to"):
        certify(CertifyJob(small_config(base, device="cuda"), prompts=PROMPTS[:1]))
