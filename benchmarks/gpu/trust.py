"""Whether an engine may be timed: its probabilities beside those of transformers (and peft), and of its decodes beside
those of its own prompts."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from .figure import Stage, WrongResult
from .models import workplace
from .serving import Served, random_tokens
from .shapes import Checkpointed

PROMPTS: Final = 4
TOLERANCES: Final = {"bfloat16": 0.06, "fp8 keys": 0.15, "fp8": 0.3, "int4": 0.65}
"""Size of the differences over the spread of the reference, by what is rounded: nothing beyond bfloat16, keys and
values, all that float8 can hold, weights. What is unrelated has 1.4; simulated without faults, and with some, in
benchmarks/NOTES.md."""
DECODE_TOLERANCES: Final = {"bfloat16": 0.06, "fp8 keys": 0.15, "fp8": 0.25, "int4": 0.1}
"""Of decodes beside prompts of the same engine: sums in another order, after which what is rounded falls to one side or
the other."""
_REFERENCES: dict[tuple[Stage, Checkpointed, Path | None], torch.Tensor] = {}
_JUDGED: dict[tuple[Stage, str], str | None] = {}
"""What is wrong, in words: an error would hold the engine by the frames of its traceback."""


def require_trust(
    stage: Stage, served: Served, model: Checkpointed, key: str, stored: str = "bfloat16", adapters: Sequence[Path] = ()
) -> None:
    """Raises WrongResult. `key` names the engine's settings, which are judged once; `adapters`: folders of the served
    ones, of which the first and the last are looked at."""
    if (stage, key) not in _JUDGED:
        _JUDGED[stage, key] = _judge(stage, served, model, stored, adapters)
    wrong = _JUDGED[stage, key]
    if wrong is not None:
        raise WrongResult(wrong)


def _judge(stage: Stage, served: Served, model: Checkpointed, stored: str, adapters: Sequence[Path]) -> str | None:
    places = sorted({0, len(adapters) - 1}) if adapters else []
    try:
        learn_references(stage, model, [None, *(adapters[place] for place in places)])
        compare(stage, served, model, stored, None, None)
        for place in places:
            compare(stage, served, model, stored, adapters[place], served.digests[place])
    except WrongResult as error:
        return str(error)
    finally:
        served.clear()
    return None


def compare(
    stage: Stage, served: Served, model: Checkpointed, stored: str, adapter: Path | None, digest: str | None
) -> None:
    """Raises WrongResult."""
    texts = sample_texts(stage, model)
    streams = [
        served.add(text, stage.size.said, digest, logprobs=True, prompt_logprobs=True) for text in texts
    ]  # fmt: skip
    served.run()
    found = torch.tensor([stream.prompt_logprobs for stream in streams], dtype=torch.float64)
    who = "the base" if adapter is None else adapter.name
    _require(found, reference(stage, model, adapter), TOLERANCES[stored], f"{who}: prompts beside transformers")
    again = [
        served.add(stream.prompt + stream.tokens, 1, digest, prompt_logprobs=True) for stream in streams
    ]  # fmt: skip
    served.run()
    decoded = torch.tensor([stream.logprobs for stream in streams], dtype=torch.float64)
    prompted = torch.tensor([stream.prompt_logprobs[len(texts[0]) - 1 :] for stream in again], dtype=torch.float64)
    what, spread = f"{who}: decodes beside prompts", float(found.std())
    _require(decoded, prompted, DECODE_TOLERANCES[stored], what, spread)


def _require(
    found: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str, spread: float | None = None
) -> None:
    if found.shape != wanted.shape or not found.isfinite().all():
        shapes = f"{tuple(found.shape)} for {tuple(wanted.shape)}"
        raise WrongResult(f"{what}: log-probabilities {shapes}, or some that are not finite")
    off = float((found - wanted).square().mean().sqrt()) / (spread or float(wanted.std()))
    if not off <= tolerance:
        raise WrongResult(f"{what}: log-probabilities off by {off:.3g} of their spread, {tolerance:g} is allowed")


def sample_texts(stage: Stage, model: Checkpointed) -> list[list[int]]:
    source = random.Random(1)
    return [random_tokens(source, stage.size.judged, model.vocabulary) for _ in range(PROMPTS)]


def reference(stage: Stage, model: Checkpointed, adapter: Path | None) -> torch.Tensor:
    """Log-probabilities [prompts, tokens - 1] float64 of the sample texts, by transformers in bfloat16 with float32 on
    a CPU, as `learn_references` keeps them."""
    return _REFERENCES[stage, model, adapter]


def learn_references(stage: Stage, model: Checkpointed, adapters: Sequence[Path | None]) -> None:
    """Those that are not known yet; loading the model takes longest, so that it is loaded once for all of them."""
    missing = [adapter for adapter in adapters if (stage, model, adapter) not in _REFERENCES]
    if not missing:
        return
    loaded, texts = load_transformers(stage, model), sample_texts(stage, model)
    following = torch.tensor(texts)[:, 1:, None]
    for adapter in missing:
        adapted = loaded if adapter is None else _adapt(loaded, adapter)
        logits = _logits(stage, adapted, texts)[:, :-1].double()
        _REFERENCES[stage, model, adapter] = logits.log_softmax(-1).gather(-1, following)[..., 0]
        loaded = adapted if adapter is None else adapted.unload()


def _adapt(loaded: Any, adapter: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(loaded, adapter).eval()


def transformers_logits(stage: Stage, model: Checkpointed, texts: list[list[int]]) -> torch.Tensor:
    """[texts, tokens, vocabulary] float32 on the host; texts are of one length."""
    return _logits(stage, load_transformers(stage, model), texts)


@torch.inference_mode()
def _logits(stage: Stage, loaded: Any, texts: list[list[int]]) -> torch.Tensor:
    logits: torch.Tensor = loaded(torch.tensor(texts, device=stage.device)).logits
    return logits.float().cpu()


def load_transformers(stage: Stage, model: Checkpointed) -> Any:
    """In bfloat16 on the stage's device; float32 on a CPU, as the engine computes there."""
    from transformers import AutoModelForCausalLM

    folder = model.make(stage.device, workplace(model.bytes))
    dtype = torch.float32 if stage.device.type == "cpu" else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(stage.device).eval()
