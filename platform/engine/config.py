"""EngineConfig: everything the engine needs to know, decided once at start. Sent to the child process as JSON."""

from typing import Final

import msgspec

CPU_TILE: Final = 16
"""Tokens that a CPU's attention takes together: a vector of float32."""
ADAPTER_SHARE: Final = 0.1
"""Of a GPU's memory beside the model, for whoever was told no size of adapter memory."""
CPU_STEP_TOKENS: Final = 512
STEP_TOKENS: Final = {"cuda": 2048}
"""By the type of a device that is no CPU."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Torch-free, so that the API process can build it."""

    model: str
    """Local folder in Hugging Face layout (a hub id is resolved to a folder before this is built)."""
    tokenizer: str = ""
    """Folder of another tokenizer than the model's; empty: the model's."""
    served_name: str = ""
    classifier_from_token: list[str] = []
    """The false and the true token of a reranker that judges by them and does not say so itself."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: str = "auto"
    """How weights are stored: auto (the checkpoint's), bfloat16, float16 or float32."""
    quantization: str = "none"
    """What float linears are rounded to as they are loaded: none, int4, int8 or fp8; awq: once, at the first start."""
    head_quantization: str = "none"
    """The same for the output head: none or int8."""
    weights_cache: str = ""
    """Folder that packed and AWQ-quantized weights are kept in for the next start; empty: they are not."""
    weights_cache_bytes: int = 32 << 30
    """Most that is kept there; 0: nothing is."""
    max_model_len: int | None = None
    """Tokens of prompt plus output; None: what the checkpoint says."""
    max_num_seqs: int = 64
    """Maximum sequences in one step."""
    max_num_batched_tokens: int = 0
    """Tokens one step may process: decodes first, prefill chunks fill the rest; 0: `default_step_tokens`."""
    block_size: int = 16
    """Tokens in one KV block."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory that the engine may take in all; what weights, steps and adapters leave of it is for the
    KV cache."""
    kv_cache_memory: int | None = None
    """Bytes for the KV cache; None: a share of the free memory, on a GPU all that is left."""
    kv_cache_dtype: str = "auto"
    """How keys and values are stored: auto (as the weights), or in 8 bits with scales: fp8_e4m3, fp8_e5m2 or int8."""
    kv_cache_scales: str = "auto"
    """Of keys and values in 8 bits: static (the file's or the checkpoint's), dynamic (each its own), or auto (static
    where there are any for the dtype, else dynamic)."""
    kv_scales_file: str = ""
    """What `loraplex calibrate-kv` wrote; empty: nothing."""
    num_kv_blocks: int | None = None
    """Exact number of KV blocks; overrides kv_cache_memory. For tests and for the last byte."""
    num_state_slots: int | None = None
    """Exact number of slots for the states of recurrent layers, one of them padding; None: two for each of
    max_num_seqs, in no more than half of the cache memory. No matter to a model without such layers."""
    enable_prefix_caching: bool = True
    adapter_memory: int = 512 << 20
    """Bytes of rank pages for resident adapters."""
    adapter_memory_share: float | None = None
    """On a GPU: what rank pages take of the memory beside the model, in place of adapter_memory."""
    adapter_host_memory: int = 512 << 20
    """Bytes of the host's memory for the pages of adapters that had to leave; 0: they come back from disk."""
    max_loaded_adapters: int = 256
    """Adapters that may be resident at once (slots of the static page table)."""
    max_queue: int = 512
    """Waiting requests over all tenants; one more is refused."""
    seed: int | None = None
    """Requests without a seed draw theirs from it, in the order they come; None: at random."""
    num_threads: int | None = None
    """CPU threads for torch and numba together; None: all cores this process may use."""

    @property
    def most_step_tokens(self) -> int:
        """Of any step, with the padding of decodes."""
        return max(self.max_num_batched_tokens, self.max_num_seqs)


def check_block_size(block_size: int) -> None:
    """ValueError for blocks that the kernels of a CPU cannot lay out."""
    if block_size % CPU_TILE:
        raise ValueError(f"block_size is {block_size}; on a CPU it must be a multiple of {CPU_TILE}")


def default_step_tokens(device: str, max_num_seqs: int) -> int:
    """Of a step on `device`, by its type. On a GPU a step costs the host as much whatever its prompts; on a CPU the
    decodes beside a longer prompt would wait."""
    return max(STEP_TOKENS.get(device, CPU_STEP_TOKENS), max_num_seqs)


def check_step(max_num_batched_tokens: int, max_num_seqs: int) -> None:
    """ValueError for a step without a token for each of its sequences."""
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens {max_num_batched_tokens} is below max_num_seqs {max_num_seqs}, but each running "
            "sequence needs a token of every step; raise the one or lower the other"
        )
