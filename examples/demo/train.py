"""Trains the demo from nothing: `python -m examples.demo.train` (about 20 minutes on 2 cores).

Writes model/, adapters/<name>/, figures.json and prompts.json beside this file.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from .adapters import train_adapter
from .base import train_base
from .evaluate import answer, load_base, load_tokenizer, measure
from .files import write_json
from .jobs import JOBS, Job, split
from .recipe import FOLDER, Recipe

SAMPLE_PROMPTS = 3
CANDIDATES = 30
"""Held-out prompts tried for the samples."""


def main(recipe: Recipe, folder: Path, jobs: Sequence[Job] = JOBS) -> None:
    disable_progress_bar()
    torch.set_num_threads(recipe.threads)
    base = folder / "model"
    with _progress() as progress:
        train_base(recipe, base, progress)
        for job in jobs:
            train_adapter(job, recipe, base, folder / "adapters" / job.name, progress)
    figures = {job.name: measure(job, recipe, base, folder / "adapters" / job.name) for job in jobs}
    write_json(folder / "figures.json", figures)
    write_json(folder / "prompts.json", {job.name: samples(job, recipe, folder) for job in jobs})
    for name, row in figures.items():
        print(f"{name:10} adapter {row['adapter_exact_match']:7.1%}   base {row['base_exact_match']:7.1%}")


def samples(job: Job, recipe: Recipe, folder: Path) -> list[dict[str, str]]:
    """Prompts to try: the first held-out ones that the saved adapter answers right, with these answers."""
    _, heldout = split(job, recipe.heldout, recipe.seed)
    model = PeftModel.from_pretrained(load_base(folder / "model"), folder / "adapters" / job.name)
    questions = [question for question, _ in heldout[:CANDIDATES]]
    given = answer(model, load_tokenizer(folder / "model"), questions)
    right = [pair for pair, said in zip(heldout, given, strict=False) if pair[1] == said]
    return [{"prompt": question, "answer": said} for question, said in right[:SAMPLE_PROMPTS]]


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
    main(Recipe(), FOLDER)
