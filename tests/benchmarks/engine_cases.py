"""Rows of the whole engine with tiny sizes on the CPU, in a process without msgspec, rich and all else that a machine
with torch need not have: test_gpu_engine.py starts it."""

import json
import sys
import weakref
from pathlib import Path
from typing import Any

from .without_packages import forget_installation

REFUSED = ("msgspec", "rich", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "pydantic_settings")


def watch_memory() -> list[Any]:
    """Weak references to the caches of engines, of which none may be left when the next engine is opened."""
    from benchmarks.gpu import serving

    caches: list[Any] = []
    import_engine = serving._import_engine

    def build_watched() -> Any:
        assert not any(cache() for cache in caches), "an engine that was closed holds its memory"
        build = import_engine()

        def build_and_note(config: Any) -> Any:
            engine = build(config)
            caches.append(weakref.ref(engine.cache))
            return engine

        return build_and_note

    serving._import_engine = build_watched
    return caches


def give_the_peer_little_memory() -> None:
    """It would take most of the machine's for its cache, and fill it."""
    from transformers import ContinuousBatchingConfig, GenerationMixin

    open_manager = GenerationMixin.continuous_batching_context_manager

    def open_small(model: Any, **given: Any) -> Any:
        small = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=256)
        return open_manager(model, continuous_batching_config=small, **given)

    GenerationMixin.continuous_batching_context_manager = open_small


def main(folder: Path) -> None:
    forget_installation()
    sys.modules |= dict.fromkeys(REFUSED)
    from benchmarks.gpu import trust
    from benchmarks.gpu.__main__ import run
    from benchmarks.gpu.engine import figures
    from benchmarks.gpu.figure import Stage
    from benchmarks.gpu.models import Model
    from benchmarks.gpu.serving import Served

    from .tiny import TINY, beside, tiny_stage

    decode = Served.decode

    def decode_at_made_up_speed(served: Served, sequences: int, context: int, *given: Any) -> float:
        """Slopes of what takes no time would be noise."""
        assert decode(served, sequences, context, *given) > 0
        return 1e-6 * (1000 + sequences * context)

    loads, load = list[str](), trust.load_transformers

    def load_and_note(stage: Stage, model: Model) -> Any:
        loads.append(model.name)
        return load(stage, model)

    trust.load_transformers = load_and_note
    Served.decode = decode_at_made_up_speed  # type: ignore[method-assign]
    give_the_peer_little_memory()
    stage, chosen = tiny_stage(), {"engine": figures(TINY)}
    caches = watch_memory()
    status = run(beside(stage), chosen, {"engine": 1e9}, folder / "rows.json", {"card": None})
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())["rows"]
    assert status == 0, [row for row in rows if row["value"] is None]
    assert [row["what"] for row in rows] == [figure.what for figure in chosen["engine"]]
    missing = {row["what"]: row["note"] for row in rows if row["value"] is None}
    assert list(missing.values()) == ["steps are not captured on this device"] or not missing, missing
    assert "msgspec" in sys.modules and not hasattr(sys.modules["msgspec"], "__file__"), "a stand-in"
    assert len(caches) > 5 and not any(cache() for cache in caches)
    assert all(wrong is None for wrong in trust._JUDGED.values())
    assert loads == ["little", "little", "large", "large", "little"], (
        "the base, its greedy tokens, both adapters at once"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
