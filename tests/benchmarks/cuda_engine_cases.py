"""Rows of the engine on CUDA's path with the least sizes, in triton's interpreter, in a process that has torch, triton,
transformers, peft, safetensors, what those need, and nothing else: test_gpu_engine.py starts it."""

import sys
import weakref
from dataclasses import replace
from typing import Any

from .without_packages import forget_installation, refuse_all_but


def main() -> None:
    forget_installation()
    import pytest  # which stands in for a device

    refuse_all_but("torch", "triton", "transformers", "peft", "safetensors")
    from benchmarks.gpu import serving
    from benchmarks.gpu.stand_ins import provide_msgspec

    provide_msgspec()
    from tests.engine.cuda_double import pretend_cuda
    from tests.triton_interpreter import patch_modules_once

    with pytest.MonkeyPatch.context() as patch:
        pretend_cuda(patch)
        patch_modules_once(patch)
        patch.setattr(serving, "_import_engine", lambda: in_place_of_cuda)
        patch.setattr(serving, "WARM_STEPS", 1)
        measure_rows()
    assert not hasattr(sys.modules["msgspec"], "__file__"), "a stand-in"


CACHES: list[Any] = []
"""Weak references to those of engines, of which none may be left when the next engine is opened."""


def in_place_of_cuda(config: Any) -> Any:
    """The engine on CUDA's path, in float32: transformers computes in it on a CPU."""
    from msgspec.structs import replace

    from loraplex.engine.startup.build import build_engine

    assert not any(cache() for cache in CACHES), "an engine that was closed holds its memory"
    engine = build_engine(replace(config, device="cuda", dtype="float32"))
    CACHES.append(weakref.ref(engine.cache))
    return engine


def measure_rows() -> None:
    """Greedy tokens that transformers would say, captured steps beside the same launches one by one, a step's time;
    with an adapter too, which is loaded from its files. Then all rows of a family with recurrent layers, and of one
    with experts."""
    from benchmarks.gpu import engine_rows, together
    from benchmarks.gpu.families import family_rows
    from tests.engine.recorded_graph import RecordedGraph

    from .tiny import TINY, tiny_stage

    small: dict[str, Any] = {"layers": 1, "hidden": 32, "intermediate": 48, "heads": 2, "kv_heads": 1}
    size = replace(
        TINY, little=replace(TINY.little, **small), large=replace(TINY.large, **small), judged=6, said=1, crowd=2,
        context=8, steps=4, adapters=(1,), rank=8, concurrent=(1, 2),
    )  # fmt: skip
    stage = tiny_stage(size)
    little = engine_rows.little_rows(stage)
    assert little["agreeing"] == 1.0 and set(little) == {"agreeing", "captured", "roof", "busy"}
    assert RecordedGraph.captured > 0 and RecordedGraph.replayed > 0
    together._KEPT[engine_rows.large_rows, stage] = {"crowd seconds": 1.0}
    adapted = engine_rows.adapted_rows(stage)
    assert set(adapted) == {"1", "unused"}
    recurrent = next(family for family in TINY.families if family.name.startswith("qwen3.5"))
    for family in (recurrent, *TINY.mixture_models):
        rows = family_rows(family, stage)
        assert set(rows) == {"1", "2", "adapters", "captured"}
        assert all(type(value) is float and value > 0 for value in (little | adapted | rows).values())
    assert len(CACHES) == 4 and not any(cache() for cache in CACHES)


if __name__ == "__main__":
    main()
