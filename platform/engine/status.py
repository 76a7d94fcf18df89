"""What the engine tells of itself: the parts of EngineInfo and EngineStatus. Encoded with them."""

import msgspec


class DeviceMemory(msgspec.Struct, kw_only=True):
    """Bytes of a GPU, beside those of weights, adapters and KV cache that EngineInfo has for every device."""

    total: int
    allowed: int
    """Its share gpu_memory_utilization."""
    activations: int
    """Most that the largest step takes while it runs, measured at the start."""
    graphs: int
    """Set aside for captured steps, beside what they share."""
    graph_pool: int = 0
    """What they share, measured at the start."""


class Clipping(msgspec.Struct, kw_only=True):
    """What static scales of the KV cache did to the tokens that an adapter, or the base alone, computed."""

    tokens: int = 0
    """All whose keys and values were written."""
    clipped_tokens: int = 0
    """Those of which at least one number was beyond its scale."""
    clipped_values: int = 0
    """Such numbers."""


class AdapterStatus(msgspec.Struct, kw_only=True):
    """Residency of one registered adapter."""

    digest: str
    state: str
    """registered (not in use, on disk or in the host cache), loading, resident or failed."""
    tier: str = "disk"
    """Where the nearest copy of its weights is: disk, host (cache) or device."""
    rank: int = 0
    pages: int = 0
    bytes: int = 0
    host_bytes: int = 0
    """Of its copy in the host cache, which a resident may have as well; 0: none."""
    pinned: bool = False
    running: int = 0
    """Sequences that hold it."""
    waiting: int = 0
    loads: int = 0
    host_loads: int = 0
    """Loads out of the host cache, a part of `loads`."""
    evictions: int = 0
    evicted_for: str | None = None
    """Digest whose load pushed it out last."""
    load_seconds: float | None = None
    last_used_seconds_ago: float | None = None
    clipping: Clipping | None = None
    """Since the engine's start; None where it wrote nothing with static scales. Of a token that several adapters
    compute each has it all."""
    error: str | None = None


class Distribution(msgspec.Struct, kw_only=True):
    """A histogram since the engine's start."""

    bounds: list[float]
    """Inclusive upper bounds of the buckets, ascending."""
    counts: list[int]
    """In each bucket alone, with one more for what is above the last bound."""
    total: float
    """Sum of all values."""


class StructuredStatus(msgspec.Struct, kw_only=True):
    """Structured output since the engine's start."""

    requests: dict[str, int]
    """By kind, as of StructuredOutputs.source(); those that were refused among them."""
    failed: dict[str, int]
    """Requests by why they ended with an error, as of `constraints/counts.py`."""
    compile_seconds: Distribution
    """Of each grammar that was compiled, also in vain."""
    mask_seconds: Distribution
    """That a step waited for the masks of its choices."""
    late_masks: int
    """Times that a choice sat a step out since its mask was not there in time."""
    restarts: int
    """Processes that ended, or were ended, and were replaced."""


class TenantStatus(msgspec.Struct, kw_only=True):
    """What one tenant's requests do now, and what they have looked up since the engine's start."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    """KV blocks that its running sequences hold; one that several of them share counts for each."""
    prefix_queries: int = 0
    prefix_hits: int = 0
