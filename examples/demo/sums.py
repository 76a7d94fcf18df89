"""Two adapters added up for one request: the sum does both jobs, and the question says which."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from peft import PeftModel

from .evaluate import exact_match, load_base, load_tokenizer
from .jobs import Job, split
from .recipe import Recipe

SUM: Final = {"sql": 0.4, "spanish": 0.6}
"""Adapter -> its scale. With both at 1 the SQL drowns the Spanish."""


def measure_sum(jobs: Sequence[Job], scales: Mapping[str, float], recipe: Recipe, folder: Path) -> dict[str, object]:
    """Exact match of the sum on the held-out examples of each of its jobs, through PEFT."""
    tokenizer, model = load_tokenizer(folder / "model"), _load_sum(scales, folder)
    matches = {
        job.name: exact_match(model, tokenizer, split(job, recipe.heldout, recipe.seed)[1])
        for job in jobs
        if job.name in scales
    }
    return {"scales": dict(scales), "heldout": recipe.heldout, "exact_match": matches}


def _load_sum(scales: Mapping[str, float], folder: Path) -> PeftModel:
    first, *others = scales
    model = PeftModel.from_pretrained(load_base(folder / "model"), folder / "adapters" / first, adapter_name=first)
    for name in others:
        model.load_adapter(folder / "adapters" / name, adapter_name=name)
    model.add_weighted_adapter(list(scales), list(scales.values()), "sum", combination_type="cat")
    model.set_adapter("sum")
    return model
