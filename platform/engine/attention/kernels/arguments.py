"""What one step hands to the attention kernels, for callers that are compiled themselves."""

from typing import Any, NamedTuple


class Paged(NamedTuple):
    """The cache of layers whose heads are alike, and what every layer of a step shares. Shapes as in paged.py, L layers
    of the model, of which K have keys of their own here."""

    key: Any
    """[K, N, G, B, D, 16]"""
    value: Any
    """[K, N, G, B, 16, D]"""
    scales: Any
    """[K, N, G, B, 2, 16], or [K, 0] and so on"""
    static: Any
    """[K, 2, G] float32"""
    places: Any
    """[L] int64, which of the K caches a layer reads; -1: one of other heads"""
    positions: Any
    """[T] int64"""
    slots: Any
    """[T] int64, where the tokens' keys and values go"""
    clipped: Any
    """[L, T] int64, filled in as write.py says; [L, 0] without static scales"""
    block_tables: Any
    decode_items: Any
    prefill_items: Any
    """Work items, as plan.py makes them; `merges` too."""
    merges: Any
    partial_sums: Any
    partial_states: Any
    counter: Any
    windows: Any
    """[L] int64"""
    score_scales: Any
    """[L] float32"""
    soft_caps: Any
    """[L] float32; 0: none"""
    decode_most: Any
    """Most rows of a work item; `prefill_most` alike."""
    prefill_most: Any
    decode_kernel: Any
    """The address of what attends, 0 where there are no items; `prefill_kernel` alike."""
    prefill_kernel: Any
    workers: Any
