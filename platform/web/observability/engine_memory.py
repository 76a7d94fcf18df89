"""What the engine's memory is for, in numbers and in words; on a GPU also what steps take."""

from loraplex.engine.protocol import EngineInfo

from ..units import size_words


def memory_parts(info: EngineInfo) -> dict[str, int]:
    """Part -> bytes reserved at the start, largest purposes first as they were given out."""
    device = info.device_memory
    steps: dict[str, int] = {}
    if device is not None:
        steps = {"activations": device.activations, "graphs": device.graphs, "graph_pool": device.graph_pool}
    states = {"recurrent_states": info.state_bytes} if info.num_states else {}
    caches = {"adapters": info.adapter_memory, "kv_cache": info.kv_cache_bytes, **states}
    return {"weights": info.weight_bytes, **steps, **caches}


def memory_words(info: EngineInfo) -> str:
    """One line: each part and, on a GPU, of how much."""
    parts = ", ".join(f"{part.replace('_', ' ')} {size_words(size)}" for part, size in memory_parts(info).items())
    if info.device_memory is None:
        return parts
    allowed, total = size_words(info.device_memory.allowed), size_words(info.device_memory.total)
    return f"{parts}; of {allowed} allowed, {total} in all"
