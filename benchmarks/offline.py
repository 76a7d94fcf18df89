"""LLM.generate over many prompts beside the engine's own loop over the same requests: python -m benchmarks.offline

One process, in turn. The loop of the engine has token ids in and token ids out: no text, no outputs, no bar.
"""

import argparse
import resource
import statistics
import time
from typing import Final

from loraplex.engine.device.threads import prepare_environment

prepare_environment()

from loraplex import LLM, SamplingParams  # noqa: E402
from loraplex.engine.protocol import GenerateRequest  # noqa: E402

from .checkpoints import HALF_BILLION, base_checkpoint  # noqa: E402
from .report import Row, show  # noqa: E402

GOAL: Final = 0.97
PROMPT_TOKENS: Final = 16


def prompts_of(count: int) -> list[list[int]]:
    """Different from their first token block on."""
    return [[3 + (7 * number + 13 * place) % 997 for place in range(PROMPT_TOKENS)] for number in range(count)]


def generate_seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    taken = time.perf_counter() - started
    assert [output.prompt_token_ids for output in outputs] == prompts
    return taken


def engine_seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    core = llm.llm_engine.engine.core
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        core.add(GenerateRequest(request_id=f"own-{number}", prompt_token_ids=prompt, params=params))
    while core.has_work():
        core.step()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder; without it a random checkpoint of 0.5B dimensions")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    prompts = prompts_of(chosen.prompts)
    params = SamplingParams(temperature=0.0, max_tokens=chosen.tokens, ignore_eos=True)
    with LLM(chosen.model or base_checkpoint(HALF_BILLION), enable_prefix_caching=False) as llm:
        generate_seconds(llm, prompts[: len(prompts) // 8 + 1], params)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        own, whole = [], []
        for _ in range(chosen.rounds):
            own.append(engine_seconds(llm, prompts, params))
            whole.append(generate_seconds(llm, prompts, params))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ratio = statistics.median(first / second for first, second in zip(own, whole, strict=True))
    speed = chosen.prompts * chosen.tokens / statistics.median(whole)
    show(
        "offline",
        [
            Row(f"LLM.generate: {chosen.prompts} prompts", speed, "tokens/s"),
            Row("LLM.generate / the engine's own loop", ratio, "x", GOAL),
            Row("memory above the start", grown / 1024, "MB"),
        ],
    )


if __name__ == "__main__":
    main()
