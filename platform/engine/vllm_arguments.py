"""What vLLM's arguments of an engine mean here, in one table: `LLM(...)` and `loraplex serve` read the same.

An argument is ours by its own name (a field of EngineConfig) or another one (RENAMED). Else it stands in ARGUMENTS.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .config import EngineConfig
from .model.config import ModelConfig
from .pooling.token_judge import read_judge

OWN: Final = frozenset(EngineConfig.__struct_fields__) - {"model"}
RENAMED: Final[Mapping[str, str]] = {
    "num_gpu_blocks_override": "num_kv_blocks",
    "kv_cache_memory_bytes": "kv_cache_memory",
}
VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "kv_cache_dtype": {"fp8": "fp8_e4m3"},
    "quantization": {"awq_marlin": "awq", "gptq_marlin": "gptq"},
}
"""Argument -> vLLM's word for a value -> ours."""
QUANTIZED_AT_LOAD: Final = ("none", "int4", "int8", "fp8", "awq")
TASKS: Final = ("task", "runner")
"""Arguments that say what the model is for. Nothing depends on them, but the model must be able to."""
MOST_LOGPROBS: Final = 20
"""Alternatives that a request may ask for."""


class Anything(Container[Any]):
    def __contains__(self, value: object) -> bool:
        return True


ANYTHING: Final = Anything()
NOTHING: Final[Container[Any]] = (None, "", 0, [], {}, "none")
OFF: Final = (None, False)
ONE: Final = (None, 1)


@dataclass(frozen=True, slots=True)
class Argument:
    """`taken`: values that are accepted and change nothing here. `why`: so, or what to do about another value."""

    taken: Container[Any]
    why: str
    is_switch: bool = False

    @property
    def is_without_need(self) -> bool:
        """Accepted at any value."""
        return self.taken is ANYTHING

    def refusal(self, name: str, value: Any) -> str | None:
        """Why this value cannot be had; None: it changes nothing."""
        return None if value is None or value in self.taken else f"{name}={value!r} is not supported: {self.why}"


def arguments(taken: Container[Any], why: str, values: str = "", switches: str = "") -> Iterable[tuple[str, Argument]]:
    """Those that share an answer, as words: such with values, and such that are on or off."""
    yield from ((name, Argument(taken, why)) for name in values.split())
    yield from ((name, Argument(taken, why, is_switch=True)) for name in switches.split())


_LORA = "any number of adapters of any rank shares a batch"
_STEPS = "the engine compiles, captures and schedules its steps by itself"
_TEXT = "models read text alone"
_DEVICES = "it only matters with several devices; a model runs on one"
_ONE_DEVICE = "a model runs on one device; start one server a device"
_BOTH = "a model generates text and makes embeddings"
_PLUGIN = "no code from elsewhere is loaded"

ROWS: Final = (
    *arguments(
        ANYTHING,
        _LORA,
        "max_loras max_lora_rank max_cpu_loras lora_dtype lora_extra_vocab_size long_lora_scaling_factors",
        "enable_lora fully_sharded_loras specialize_active_lora enable_lora_bias",
    ),
    *arguments(
        ANYTHING,
        _STEPS,
        "compilation_config cudagraph_capture_sizes max_cudagraph_capture_size max_seq_len_to_capture "
        "optimization_level performance_mode attention_backend attention_config kernel_config moe_backend "
        "linear_backend distributed_executor_backend num_scheduler_steps num_lookahead_slots preemption_mode "
        "max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold scheduler_delay_factor "
        "stream_interval max_parallel_loading_workers safetensors_load_strategy pt_load_map_location",
        "enforce_eager enable_flashinfer_autotune use_v2_block_manager disable_cascade_attn async_scheduling "
        "disable_async_output_proc multi_step_stream_outputs kv_sharing_fast_prefill use_tqdm_on_load "
        "disable_hybrid_kv_cache_manager",
    ),
    *arguments(ANYTHING, "LLM.sleep() always works; stop a server to free its memory", switches="enable_sleep_mode"),
    *arguments(ANYTHING, "long prompts are always read in chunks", switches="enable_chunked_prefill"),
    *arguments(ANYTHING, "preempted sequences are computed again", "swap_space"),
    *arguments(ANYTHING, "keys of blocks are SHA-256", "prefix_caching_hash_algo"),
    *arguments(ANYTHING, "scales of an 8-bit KV cache are dynamic", switches="calculate_kv_scales"),
    *arguments(ANYTHING, "higher priority first, then arrival, within each tenant's fair share", "scheduling_policy"),
    *arguments(ANYTHING, "llguidance masks the tokens", "guided_decoding_backend"),
    *arguments(ANYTHING, "the method of the checkpoint is read", switches="allow_deprecated_quantization"),
    *arguments(
        ANYTHING,
        "tokenizer.json is read",
        "tokenizer_mode tokenizer_pool_size tokenizer_pool_type tokenizer_pool_extra_config",
    ),
    *arguments(ANYTHING, "no code of a checkpoint is ever run", "code_revision", "trust_remote_code"),
    *arguments(ANYTHING, "safetensors and JSON files alone are downloaded", "ignore_patterns"),
    *arguments(
        ANYTHING,
        _TEXT,
        "limit_mm_per_prompt mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type "
        "mm_shm_cache_max_object_size_mb mm_encoder_tp_mode mm_encoder_attn_backend media_io_kwargs "
        "video_pruning_rate allowed_local_media_path allowed_media_domains",
        "disable_mm_preprocessor_cache disable_chunked_mm_input skip_mm_profiling interleave_mm_strings "
        "language_model_only enable_tower_connector_lora enable_mm_processor_stats",
    ),
    *arguments(
        ANYTHING,
        "no served model has it",
        "mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype eplb_config "
        "expert_placement_strategy all2all_backend",
        "enable_expert_parallel enable_eplb",
    ),
    *arguments(
        ANYTHING,
        _DEVICES,
        "master_addr master_port data_parallel_address data_parallel_rpc_port data_parallel_backend "
        "dcp_kv_cache_interleave_size cp_kv_cache_interleave_size ubatch_size dbo_decode_token_threshold "
        "dbo_prefill_token_threshold",
        "disable_custom_all_reduce disable_nccl_for_dp_synchronization enable_dbo ray_workers_use_nsight",
    ),
    *arguments(
        ANYTHING,
        "/metrics and the log always have what is measured",
        "kv_cache_metrics_sample show_hidden_metrics_for_version",
        "disable_log_stats disable_log_requests enable_log_requests aggregate_engine_logging kv_cache_metrics "
        "cudagraph_metrics enable_mfu_metrics enable_logging_iteration_details enable_layerwise_nvtx_tracing",
    ),
    *arguments(range(MOST_LOGPROBS + 1), f"a request may ask for {MOST_LOGPROBS}", "max_logprobs"),
    *arguments(("raw_logprobs",), "log-probabilities are those before sampling parameters", "logprobs_mode"),
    *arguments(
        ONE,
        _ONE_DEVICE,
        "tensor_parallel_size pipeline_parallel_size prefill_context_parallel_size decode_context_parallel_size "
        "nnodes data_parallel_size_local",
    ),
    *arguments(ONE, "an engine is one; make several, or start several servers", "data_parallel_size"),
    *arguments((0,), _ONE_DEVICE, "node_rank data_parallel_rank data_parallel_start_rank"),
    *arguments(OFF, _ONE_DEVICE, "", "data_parallel_hybrid_lb data_parallel_external_lb enable_elastic_ep"),
    *arguments(
        NOTHING,
        "quantize the weights instead, for example with quantization int4",
        "cpu_offload_gb cpu_offload_params offload_backend offload_group_size offload_num_in_group offload_params "
        "offload_prefetch_step",
    ),
    *arguments(
        NOTHING, "keys and values stay on the device", "kv_offloading_size kv_transfer_config ec_transfer_config"
    ),
    *arguments(ANYTHING, "keys and values stay on the device", "kv_offloading_backend"),
    *arguments(("auto", "safetensors", "hf"), "weights are read from safetensors files", "load_format"),
    *arguments(("auto", "hf"), "config.json is read", "config_format"),
    *arguments(NOTHING, "weights are read from safetensors files", "model_loader_extra_config"),
    *arguments(("main",), "download the revision, and give its folder", "revision tokenizer_revision"),
    *arguments(NOTHING, "put config.json beside the weights", "hf_config_path"),
    *arguments(NOTHING, "change config.json in the model's folder", "rope_scaling rope_theta"),
    *arguments(
        NOTHING, "classifier_from_token is read of them; else change config.json in the model's folder", "hf_overrides"
    ),
    *arguments(NOTHING, "set HF_HOME to the folder", "download_dir"),
    *arguments(OFF, "set HF_TOKEN to the token", "hf_token"),
    *arguments(("auto", "vllm"), "each served family has an implementation of its own", "model_impl"),
    *arguments(OFF, "the tokenizer is read in any case, for stop strings", switches="skip_tokenizer_init"),
    *arguments(("auto", "generate", "embed", "classify", "score"), _BOTH, "task"),
    *arguments(("auto", "generate", "pooling"), _BOTH, "runner"),
    *arguments(("auto", "none", "embed"), _BOTH, "convert"),
    *arguments(NOTHING, "files of the checkpoint say how embeddings are made", "pooler_config override_pooler_config"),
    *arguments(
        NOTHING,
        "there is no speculation",
        "speculative_config speculative_model num_speculative_tokens ngram_prompt_lookup_max",
    ),
    *arguments(NOTHING, "attention computes in the dtype of the weights", "override_attention_dtype"),
    *arguments(OFF, "sliding windows of a model are part of it", switches="disable_sliding_window"),
    *arguments(OFF, "prompts are text or token ids", switches="enable_prompt_embeds enable_mm_embeds"),
    *arguments(OFF, "adapters are LoRA and what becomes one", switches="enable_prompt_adapter"),
    *arguments(OFF, "no served model has it", switches="mm_encoder_only enable_return_routed_experts tokens_only"),
    *arguments(NOTHING, _TEXT, "default_mm_loras"),
    *arguments(NOTHING, "masks follow the request's own form (docs/structured.md)", "structured_outputs_config"),
    *arguments(
        NOTHING,
        "use logit_bias, bad_words, allowed_token_ids or structured outputs",
        "logits_processors logits_processor_pattern",
    ),
    *arguments(
        ("auto",),
        _PLUGIN,
        "scheduler_cls worker_cls worker_extension_cls io_processor_plugin reasoning_parser_plugin additional_config",
    ),
    *arguments(NOTHING, "measure with benchmarks/, or an external profiler", "profiler_config collect_detailed_traces"),
    *arguments(NOTHING, "GET /api/v1/engine has the state of the cache", "kv_events_config"),
    *arguments(NOTHING, "upload a new adapter; the base stays as it is", "weight_transfer_config"),
)
ARGUMENTS: Final[Mapping[str, Argument]] = dict(ROWS)
"""Several of these names are of older versions of vLLM; its current ones are all here or ours."""


def renamed_value(name: str, value: Any) -> Any:
    """A value of one of our arguments, which may be vLLM's word."""
    return VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def check_tasks(
    asked: Mapping[str, Any], folder: Path, model: ModelConfig, classifier_from_token: Sequence[str] = ()
) -> None:
    """`asked`: values of `task` and `runner`, which were accepted. ValueError for a task that the model cannot do."""
    judge = read_judge(folder, model.vocab_size, classifier_from_token)
    for name, value in asked.items():
        if value == "generate" and model.why_silent:
            raise ValueError(f"{name}={value!r} is not possible: {model.why_silent}")
        if value == "classify" and not model.labels and judge is None:
            raise ValueError(
                f"{name}={value!r} is not possible: the model has no classification head. Leave {name} out; adapters "
                "with a head of their own classify without it"
            )


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
