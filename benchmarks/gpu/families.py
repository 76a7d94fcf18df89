"""Figures of whole engines of other families than Llama's.

Each has its speed, the cost of adapters, and what captured steps save.
"""

import json
import os
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import torch

from .engine_rows import captured_ratio, load_adapters, room
from .figure import Figure, Stage
from .models import workplace
from .serving import serve
from .shapes import Family
from .size import Size
from .together import Measure, Rows, pick
from .trust import require_trust

ADAPTERS_GOAL: Final = 1.11
"""As 8 adapters of Llama's engine have it."""
SECONDS: Final = 90.0
"""About what an engine takes from its start to its end, half of it kernels to compile; predicted."""
STD: Final = 0.02
"""Of adapters' weights."""


def figures(size: Size, families: Iterable[Family]) -> list[Figure]:
    return [figure for family in families for figure in _of_family(size, family)]


def _of_family(size: Size, family: Family) -> list[Figure]:
    measure, crowd = rows_of(family), size.concurrent[-1]
    shared = f"{crowd} streams with {size.few_adapters} adapters r={size.rank}: time of a token / own base"
    captured = f"decode step of {size.crowd} x {size.context} tokens, captured: time / not captured"
    names = {str(count): f"{count} streams of {size.context} tokens: tokens/s" for count in size.concurrent}
    speeds = [
        Figure(
            f"engine: {family.name}: {what}", "tokens/s", None, partial(pick, measure, name, place == 0),
            seconds=0.0 if place else SECONDS,
        )
        for place, (name, what) in enumerate(names.items())
    ]  # fmt: skip
    beside = {"adapters": (shared, ADAPTERS_GOAL), "captured": (captured, None)}
    ratios = [
        Figure(f"engine: {family.name}: {what}", "x", goal, partial(pick, measure, name, False), at_least=False)
        for name, (what, goal) in beside.items()
    ]
    return speeds + ratios


@lru_cache(maxsize=16)
def rows_of(family: Family) -> Measure:
    """The same for all its rows, which are measured together."""
    return partial(family_rows, family)


def family_rows(family: Family, stage: Stage) -> Rows:
    size, crowd = stage.size, stage.size.concurrent[-1]
    folders = family_adapters(family, size.rank, size.few_adapters, stage.device, workplace(family.bytes))
    # Ample: peft's files have 32 bits a number, pages 16.
    files = (1 + len(folders)) * (folders[0] / "adapter_model.safetensors").stat().st_size
    streams = max(size.crowd, crowd)
    settings = room(streams, size.context) | {
        "num_state_slots": 2 * streams + 1, "adapter_memory": 2 * files + (1 << 20),
        "max_loaded_adapters": len(folders),
    }  # fmt: skip
    with serve(stage, family, folders, **settings) as served:
        load_adapters(served, served.digests)
        require_trust(stage, served, family, family.name, adapters=folders)
        taken = {count: served.decode(count, size.context, size.steps) for count in size.concurrent}
        adapted = served.decode(crowd, size.context, size.steps, served.digests)
        speeds: Rows = {str(count): count / seconds for count, seconds in taken.items()}
        captured = captured_ratio(stage, served, family)
        return speeds | {"adapters": adapted / taken[crowd], "captured": captured}


def family_adapters(family: Family, rank: int, count: int, device: torch.device, parent: Path) -> list[Path]:
    """Folders of `count` adapters on all linears of its layers, by peft: the weights of one file under lora_alphas, and
    so digests, of their own."""
    folders = [parent / f"{family.name}-r{rank}-{number}" for number in range(count)]
    if not folders[0].exists():
        _save_adapter(family, rank, device, parent, folders[0])
    for number, folder in enumerate(folders[1:], 1):
        config = json.loads((folders[0] / "adapter_config.json").read_text())
        folder.mkdir(exist_ok=True)
        weights = folder / "adapter_model.safetensors"
        weights.unlink(missing_ok=True)
        os.link(folders[0] / weights.name, weights)
        config["lora_alpha"] = rank * (1 + number / 4096)
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folders


def _save_adapter(family: Family, rank: int, device: torch.device, parent: Path, folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    targets = family.linears()
    base = AutoModelForCausalLM.from_pretrained(family.make(device, parent), dtype=torch.bfloat16).to(device)
    settings = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, task_type="CAUSAL_LM")
    adapted = get_peft_model(base, settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=STD)
    unfinished = folder.with_suffix(".unfinished")
    adapted.save_pretrained(unfinished)
    unfinished.rename(folder)
