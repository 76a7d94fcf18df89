"""Keys and values in 8 bits on CUDA's path against the CPU."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from loraplex.engine.model.config import base_signature
from loraplex.engine.offline.adapter_files import prepare_adapter
from loraplex.engine.offline.calibrate_kv import Reader, calibrate_kv
from tests.engine.cuda_engine import cuda, small_config
from tests.engine.startup.test_static_scales import SCHEME, scale_tensors, with_scales
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import NAMES, adapters, base, on_both, prompts, run, tokens

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")


def test_keys_and_values_in_8_bits_are_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    settings = {"kv_cache_dtype": "fp8_e4m3"}
    one, other = [tokens(run(llm, prompts[1:3], NAMES[1:3])) for llm in on_both(base, adapters, **settings)]
    assert other == one


def test_what_static_scales_clip_is_counted(prompts: list[list[int]], tmp_path: Path) -> None:
    scaled = with_scales(tmp_path, scale_tensors(), SCHEME)
    one, other = [
        (tokens(run(llm, prompts[:2], [None] * 2)), llm.status().base_clipping)
        for llm in on_both(scaled, {}, kv_cache_dtype="fp8_e4m3")
    ]
    assert other == one and one[1] is not None and one[1].clipped_values > 0


def test_static_scales_are_the_cpus(base: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    with ExitStack() as scratch:
        files = prepare_adapter("rank8", adapters["rank8"], base_signature(base), scratch)
    readers = [Reader("base"), Reader("rank8", files.manifest.digest, str(adapters["rank8"]))]
    one, other = (
        calibrate_kv(small_config(base, device=device, kv_cache_dtype="fp8_e4m3"), readers, text, 128).scales
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(other, one, rtol=2**-7, atol=0)  # they are rounded to bfloat16, of other last bits
