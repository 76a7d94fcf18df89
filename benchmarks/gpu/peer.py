"""transformers' continuous batching on the same requests: the peer that every Python user has."""

import gc
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import torch

from .figure import Stage, Unsupported, WrongResult
from .models import Model
from .trust import load_transformers

LONGEST_SECONDS: Final = 45.0
"""After which its rate is taken for what it would be if it ended now: it is no higher."""


def answer_all(stage: Stage, model: Model, requests: Sequence[tuple[list[int], int]]) -> float:
    """Tokens a second of greedy answers of the given lengths. Raises Unsupported where this transformers cannot."""
    loaded = load_transformers(stage, model)
    try:
        return _answer(loaded, requests)
    except (AttributeError, TypeError, ImportError) as error:
        raise Unsupported(f"transformers {version('transformers')} answers no batch here: {error}") from error
    finally:
        del loaded
        gc.collect()
        if stage.device.type == "cuda":
            torch.cuda.empty_cache()


def _answer(loaded: Any, requests: Sequence[tuple[list[int], int]]) -> float:
    from transformers import GenerationConfig

    longest = max(answer for _, answer in requests)
    config = GenerationConfig(do_sample=False, max_new_tokens=longest, eos_token_id=-1, pad_token_id=0)
    # Entering it takes the peer's own time to warm up, which is not counted.
    with loaded.continuous_batching_context_manager(generation_config=config) as manager:
        began = time.perf_counter()
        wanted = {}
        for number, (prompt, answer) in enumerate(requests):
            name = manager.add_request(prompt, request_id=f"r{number}", max_new_tokens=answer, eos_token_id=-1)
            wanted[name] = answer
        lengths: dict[str, int] = {}
        while len(lengths) < len(wanted) and time.perf_counter() - began < LONGEST_SECONDS:
            result = manager.get_result(timeout=60)
            if result is None:
                raise Unsupported("transformers' continuous batching gave no answer for 60 s")
            if result.is_finished():
                lengths[result.request_id] = len(result.generated_tokens)
        taken = time.perf_counter() - began
    if any(length != wanted[name] for name, length in lengths.items()):
        raise WrongResult("transformers' answers have other lengths than were asked for")
    return sum(wanted.values()) / taken
