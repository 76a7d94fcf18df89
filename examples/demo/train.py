"""Trains the demo from nothing: `python -m examples.demo.train` (about 20 minutes on 2 cores).

Writes model/, adapters/<name>/, figures.json, prompts.json and golden_prompts.json beside this file. With names of
adapters it trains these alone, over the base that is there.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from .adapters import train_adapter
from .base import train_base
from .chat import BEGIN, END, exchange, render
from .evaluate import answer, load_base, load_tokenizer, measure
from .files import write_json
from .jobs import JOBS, Job, split
from .recipe import FOLDER, Recipe
from .sums import SUM, measure_sum

SAMPLE_PROMPTS = 3
GOLDEN_PROMPTS = 32
CANDIDATES = 30
"""Held-out prompts tried for the samples."""


def main(recipe: Recipe, folder: Path, jobs: Sequence[Job] = JOBS, *, keep_base: bool = False) -> None:
    disable_progress_bar()
    torch.set_num_threads(recipe.threads)
    base = folder / "model"
    with _progress() as progress:
        if not keep_base:
            train_base(recipe, base, progress)
        for job in jobs:
            train_adapter(job, recipe, base, folder / "adapters" / job.name, progress)
    figures = {job.name: measure(job, recipe, base, folder / "adapters" / job.name) for job in jobs}
    _note(folder / "figures.json", figures | _sums(jobs, recipe, folder), keep_base)
    _note(folder / "prompts.json", {job.name: samples(job, recipe, folder) for job in jobs}, keep_base)
    _note(folder / "golden_prompts.json", {job.name: golden_prompts(job, recipe) for job in jobs}, keep_base)
    for name, row in figures.items():
        print(f"{name:10} adapter {row['adapter_exact_match']:7.1%}   base {row['base_exact_match']:7.1%}")


def _sums(jobs: Sequence[Job], recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Of the adapters just trained."""
    trained = SUM.keys() <= {job.name for job in jobs}
    return {" + ".join(SUM): measure_sum(jobs, SUM, recipe, folder)} if trained else {}


def _note(path: Path, entries: dict[str, Any], keep_others: bool) -> None:
    others = json.loads(path.read_text(encoding="utf-8")) if keep_others else {}
    write_json(path, others | entries)


def samples(job: Job, recipe: Recipe, folder: Path) -> list[dict[str, str]]:
    """Prompts to try: the first held-out ones that the saved adapter answers right, with these answers."""
    heldout = [pair for pair in split(job, recipe.heldout, recipe.seed)[1] if END not in pair[0]]
    model = PeftModel.from_pretrained(load_base(folder / "model"), folder / "adapters" / job.name)
    questions = [question for question, _ in heldout[:CANDIDATES]]
    given = answer(model, load_tokenizer(folder / "model"), questions)
    right = [pair for pair, said in zip(heldout, given, strict=False) if pair[1] == said]
    return [{"prompt": question, "answer": said} for question, said in right[:SAMPLE_PROMPTS]]


def golden_prompts(job: Job, recipe: Recipe) -> list[str]:
    """What its parity certificate is measured on: held-out conversations. The tokenizer begins a text by itself."""
    _, heldout = split(job, recipe.heldout, recipe.seed)
    return [render(exchange(*pair)).removeprefix(BEGIN) for pair in heldout[:GOLDEN_PROMPTS]]


def _progress() -> Progress:
    loss = TextColumn("loss {task.fields[loss]:.3f}")
    return Progress(
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        loss,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


if __name__ == "__main__":
    known, names = {job.name: job for job in JOBS}, sys.argv[1:]
    if unknown := set(names) - known.keys():
        sys.exit(f"no adapter is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    main(Recipe(), FOLDER, [known[name] for name in names] or JOBS, keep_base=bool(names))
