"""What quantizing the demo's base, and its KV cache, costs the demo's adapters: exact answers to held-out questions."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.demo.chat import render
from examples.demo.evaluate import MAX_ANSWER
from examples.demo.jobs import JOBS, split
from examples.demo.recipe import Recipe
from loraplex import LLM, SamplingParams
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint

from .report import Row
from .scale import Scale

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
QUESTIONS = 300
FLOAT8_CACHE = {"kv_cache_dtype": "fp8_e4m3"}
LARGEST_LOSS = 1.0
"""Points of an adapter's exact answers."""
CONTEXT = 512
AWQ_GROUP = 32
"""Inputs: the demo's 192 are no multiple of 128."""


def demo_quality(scale: Scale) -> list[Row]:
    questions = 10 if scale.layers == 1 else QUESTIONS
    with _awq() as awq:
        forms = {
            "fp8, fp8 KV": (DEMO / "model", {"quantization": "fp8", **FLOAT8_CACHE}),
            "int8, int8 head, fp8 KV": (
                DEMO / "model",
                {"quantization": "int8", "head_quantization": "int8", **FLOAT8_CACHE},
            ),
            "awq, fp8 KV": (awq, FLOAT8_CACHE),
        }
        plain = exact_answers(DEMO / "model", questions)
        rows = [Row(f"demo, bf16, {name}: exact answers", points, "%") for name, points in plain.items()]
        for form, (model, settings) in forms.items():
            found = exact_answers(model, questions, **settings)
            loss = max(plain[name] - found[name] for name in plain)
            what = f"demo, {form}: most that an adapter loses"
            rows.append(Row(what, loss, "points", LARGEST_LOSS, at_least=False))
    return rows


def exact_answers(model: Path, questions: int, **settings: Any) -> dict[str, float]:
    """Percent of the first held-out questions that each adapter answers to the letter."""
    recipe, found = Recipe(), dict[str, float]()
    adapters = {job.name: DEMO / "adapters" / job.name for job in JOBS}
    with LLM(model, adapters=adapters, max_model_len=CONTEXT, **settings) as llm:
        for job in JOBS:
            examples = split(job, recipe.heldout, recipe.seed)[1][:questions]
            prompts = [render([{"role": "user", "content": question}], answer_next=True) for question, _ in examples]
            answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_ANSWER), job.name)
            right = [answer.outputs[0].text == example[1] for answer, example in zip(answers, examples, strict=True)]
            found[job.name] = 100 * sum(right) / len(right)
    return found


@contextmanager
def _awq() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "awq"
        quantize_checkpoint(DEMO / "model", output, QuantizeOptions(scheme="awq", group_size=AWQ_GROUP))
        yield output
