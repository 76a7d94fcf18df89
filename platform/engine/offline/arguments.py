"""EngineArgs: the keyword arguments of an engine in vLLM's spelling, read into an EngineConfig."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ..cache_paths import user_cache
from ..config import ADAPTER_SHARE, EngineConfig
from ..model.config import ModelConfig
from ..model.folder import resolve_model_folder

UNLIMITED: Final = 1 << 30
OWN: Final = frozenset(EngineConfig.__struct_fields__) - {"model"}
NO_EFFECT: Final = frozenset(
    {
        "calculate_kv_scales",
        "compilation_config",
        "disable_custom_all_reduce",
        "disable_log_requests",
        "disable_log_stats",
        "distributed_executor_backend",
        "enable_chunked_prefill",
        "enable_log_requests",
        "enable_lora",
        "enforce_eager",
        "fully_sharded_loras",
        "limit_mm_per_prompt",
        "long_lora_scaling_factors",
        "lora_dtype",
        "max_cpu_loras",
        "max_lora_rank",
        "max_loras",
        "max_seq_len_to_capture",
        "swap_space",
        "tokenizer_mode",
        "trust_remote_code",
        "use_v2_block_manager",
    }
)
"""Of vLLM's, for speed or memory there. Any number of adapters of any rank shares a batch here; no code of a checkpoint
is ever run."""
ONLY: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "tensor_parallel_size": ((1, None), "a model runs on one device; start one server a device"),
    "pipeline_parallel_size": ((1, None), "a model runs on one device; start one server a device"),
    "data_parallel_size": ((1, None), "an LLM is one engine; make several, or start several servers"),
    "cpu_offload_gb": ((0, None), "quantize the weights instead, for example with quantization='int4'"),
    "load_format": (("auto", "safetensors", None), "weights are read from safetensors files"),
    "revision": ((None, "main"), "download the revision, and give its folder"),
    "tokenizer_revision": ((None, "main"), "download the revision, and give its folder"),
    "skip_tokenizer_init": ((False, None), "the tokenizer is read in any case, for stop strings"),
    "task": ((None, "auto", "generate", "embed"), "a model generates text and makes embeddings"),
    "runner": ((None, "auto", "generate", "pooling"), "a model generates text and makes embeddings"),
    "convert": ((None, "auto", "none", "embed"), "a model generates text and makes embeddings"),
    "speculative_config": ((None,), "there is no speculation"),
    "hf_overrides": ((None, {}), "change config.json in the model's folder"),
}
"""vLLM's that say something else than is done here: what is taken, and what to do about another value."""
RENAMED: Final = {"num_gpu_blocks_override": "num_kv_blocks", "kv_cache_memory_bytes": "kv_cache_memory"}
DTYPES: Final = {"half": "float16", "float": "float32"}
CACHE_DTYPES: Final = {"fp8": "fp8_e4m3"}
QUANTIZED_AT_LOAD: Final = ("none", "int4", "int8", "fp8", "awq")


class EngineArgs:
    """Of an LLM, an LLMEngine or an AsyncLLM. Checked as it is made, before the model is looked for."""

    def __init__(self, model: str | Path, *, tokenizer: str | Path | None = None, **settings: Any) -> None:
        """`model` and `tokenizer`: a folder or a hub id. `settings`: fields of EngineConfig, and vLLM's.

        TypeError for an unknown keyword, with the nearest one; ValueError for a value that cannot be had.
        """
        self.model, self.tokenizer = str(model), None if tokenizer is None else str(tokenizer)
        self._settings = _read(settings)

    def create_engine_config(self) -> EngineConfig:
        """Finds the model, and downloads it where it is a hub id. ValueError as resolve_model_folder()."""
        folder = resolve_model_folder(self.model)
        settings = dict(self._settings)
        settings["quantization"] = agreed_quantization(settings.get("quantization"), ModelConfig.from_folder(folder))
        if self.tokenizer not in (None, self.model):
            settings["tokenizer"] = str(resolve_model_folder(str(self.tokenizer)))
        return EngineConfig(model=str(folder), **_defaults(settings) | settings)


def agreed_quantization(asked: str | None, model: ModelConfig) -> str:
    """What is to be done to the weights as they are loaded: nothing where the checkpoint has that quantization already.

    ValueError where it has another, or `asked` cannot be made of floats.
    """
    own = None if model.quantization is None else model.quantization.method
    if asked in (None, "none", own):
        return "none"
    if own is not None:
        raise ValueError(
            f"quantization={asked!r}, but the checkpoint is quantized with {own!r}: leave quantization out"
        )
    if asked not in QUANTIZED_AT_LOAD:
        raise ValueError(
            f"quantization={asked!r} is not made of a float checkpoint as it is loaded; there are "
            f"{', '.join(QUANTIZED_AT_LOAD[1:])}, or give a checkpoint that is quantized with {asked!r}"
        )
    return str(asked)


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of EngineConfig that are not left out."""
    settings = {RENAMED.get(name, name): value for name, value in given.items() if name not in NO_EFFECT}
    for name, (taken, advice) in ONLY.items():
        value = settings.pop(name, None)
        if value is not None and value not in taken:
            raise ValueError(f"{name}={value!r} is not supported: {advice}")
    for name in settings:
        if name not in OWN:
            raise TypeError(_unknown(name))
    if "dtype" in settings:
        settings["dtype"] = _dtype(settings["dtype"])
    if settings.get("kv_cache_dtype") in CACHE_DTYPES:
        settings["kv_cache_dtype"] = CACHE_DTYPES[settings["kv_cache_dtype"]]
    return {name: value for name, value in settings.items() if value is not None}


def _unknown(name: str) -> str:
    known = ["tokenizer", "adapters", *OWN, *NO_EFFECT, *ONLY, *RENAMED]
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "; see EngineConfig")


def _dtype(given: Any) -> str:
    """Also torch's, such as torch.bfloat16."""
    name = str(given).removeprefix("torch.")
    return DTYPES.get(name, name)


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of an engine in Python, where they are not EngineConfig's. AWQ takes minutes: what it made is kept unasked."""
    kept = {"weights_cache": str(user_cache() / "weights")} if settings.get("quantization") == "awq" else {}
    share = {} if "adapter_memory" in settings else {"adapter_memory_share": ADAPTER_SHARE}
    sequences = settings.get("max_num_seqs", 0)
    default_tokens: int = msgspec.structs.fields(EngineConfig)[_place("max_num_batched_tokens")].default
    return {"max_queue": UNLIMITED, "max_num_batched_tokens": max(default_tokens, sequences)} | kept | share


def _place(name: str) -> int:
    return EngineConfig.__struct_fields__.index(name)
