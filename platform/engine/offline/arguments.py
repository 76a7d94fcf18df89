"""EngineArgs: the keyword arguments of an engine in vLLM's spelling, read into an EngineConfig."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..cache_paths import user_cache
from ..config import ADAPTER_SHARE, EngineConfig
from ..model.config import ModelConfig
from ..model.folder import resolve_model_folder
from ..pooling.token_judge import tokens_of_overrides
from ..vllm_arguments import ARGUMENTS, OWN, RENAMED, TASKS, agreed_quantization, check_tasks, renamed_value

UNLIMITED: Final = 1 << 30


class EngineArgs:
    """Of an LLM, an LLMEngine or an AsyncLLM. Checked as it is made, before the model is looked for."""

    def __init__(self, model: str | Path, *, tokenizer: str | Path | None = None, **settings: Any) -> None:
        """`model` and `tokenizer`: a folder or a hub id. `settings`: fields of EngineConfig, and vLLM's.

        TypeError for an unknown keyword, with the nearest one; ValueError for a value that cannot be had.
        """
        self.model, self.tokenizer = str(model), None if tokenizer is None else str(tokenizer)
        self._settings = _read(settings)
        self._tasks: dict[str, Any] = {name: settings[name] for name in TASKS if name in settings}

    def create_engine_config(self) -> EngineConfig:
        """Finds the model, and downloads it where it is a hub id. ValueError as resolve_model_folder()."""
        folder = resolve_model_folder(self.model)
        settings, model = dict(self._settings), ModelConfig.from_folder(folder)
        check_tasks(self._tasks, folder, model, settings.get("classifier_from_token", ()))
        settings["quantization"] = agreed_quantization(settings.get("quantization"), model)
        if self.tokenizer not in (None, self.model):
            settings["tokenizer"] = str(resolve_model_folder(str(self.tokenizer)))
        return EngineConfig(model=str(folder), **_defaults(settings) | settings)


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of EngineConfig that are not left out."""
    given = _without_overrides(given)
    for name in ARGUMENTS.keys() & given:
        refusal = ARGUMENTS[name].refusal(name, given[name])
        if refusal is not None:
            raise ValueError(refusal)
    settings = {RENAMED.get(name, name): value for name, value in given.items() if name not in ARGUMENTS}
    for name in settings:
        if name not in OWN:
            raise TypeError(_unknown(name))
    if "dtype" in settings:
        settings["dtype"] = _dtype(settings["dtype"])
    return {name: renamed_value(name, value) for name, value in settings.items() if value is not None}


def _without_overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's hf_overrides as our own argument."""
    others = {name: value for name, value in given.items() if name != "hf_overrides"}
    tokens = tokens_of_overrides(given.get("hf_overrides"))
    return others | ({"classifier_from_token": tokens} if tokens else {})


def _unknown(name: str) -> str:
    known = ["tokenizer", "adapters", *OWN, *ARGUMENTS, *RENAMED]
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "; see EngineConfig")


def _dtype(given: Any) -> str:
    """Also torch's, such as torch.bfloat16."""
    return str(given).removeprefix("torch.")


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of an engine in Python, where they are not EngineConfig's. AWQ takes minutes: what it made is kept unasked."""
    kept = {"weights_cache": str(user_cache() / "weights")} if settings.get("quantization") == "awq" else {}
    share = {} if "adapter_memory" in settings else {"adapter_memory_share": ADAPTER_SHARE}
    return {"max_queue": UNLIMITED} | kept | share


def check_level(level: int) -> None:
    """Of a sleep. ValueError for one that vLLM has not either."""
    if level not in (1, 2):
        raise ValueError(f"level must be 1 or 2, got {level!r}")


def check_tags(tags: Sequence[str] | None) -> None:
    """What is to wake up. ValueError for a part."""
    if tags is not None and set(tags) != {"weights", "kv_cache"}:
        raise ValueError("weights and kv_cache wake up together: leave tags out")
