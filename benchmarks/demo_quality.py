"""What quantizing the demo's base, and its KV cache, costs the demo's adapters: exact answers to held-out questions."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from examples.demo.chat import render
from examples.demo.evaluate import MAX_ANSWER
from examples.demo.jobs import JOBS, split
from examples.demo.recipe import Recipe
from loraplex import LLM, SamplingParams
from loraplex.engine.quantize.options import CALIBRATION_TOKENS, QuantizeOptions
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
    with tempfile.TemporaryDirectory() as folder:
        awq = write_awq(Path(folder) / "awq")
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
    adapters = {job.name: DEMO / "adapters" / job.name for job in JOBS}
    asked = [(name, prompt, right) for name in adapters for prompt, right in _heldout(name)[:questions]]
    names, prompts, wanted = zip(*asked, strict=True)
    with LLM(model, adapters=adapters, max_model_len=CONTEXT, **settings) as llm:
        params = SamplingParams(temperature=0, max_tokens=MAX_ANSWER)
        answers = llm.generate(list(prompts), params, adapter=list(names), use_tqdm=False)
    right = [(name, answer.outputs[0].text == text) for name, answer, text in zip(names, answers, wanted, strict=True)]
    return {name: 100 * sum(exact for of, exact in right if of == name) / questions for name in adapters}


def write_awq(output: Path, calibration_tokens: int = CALIBRATION_TOKENS) -> Path:
    options = QuantizeOptions(scheme="awq", group_size=AWQ_GROUP, calibration_tokens=calibration_tokens)
    quantize_checkpoint(DEMO / "model", output, options)
    return output


@cache
def _heldout(name: str) -> list[tuple[str, str]]:
    """The adapter's held-out questions as prompts, each with the right answer."""
    recipe, job = Recipe(), next(job for job in JOBS if job.name == name)
    examples = split(job, recipe.heldout, recipe.seed)[1]
    return [(render([{"role": "user", "content": question}], answer_next=True), right) for question, right in examples]
