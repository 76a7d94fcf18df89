"""loraplex: one base model, many LoRA adapters, one server.

engine    token ids in, token ids out: scheduler, paged KV cache, models, the engine process
lora      what an adapter is, where it sits, how a batch of adapters is applied
quant     how a weight is stored and multiplied
registry  the database and the artifact store
web       HTTP: OpenAI API, admin API, dashboard
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loraplex.engine.offline.llm import LLM
    from loraplex.engine.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the offline API on first use, so that `import loraplex` stays free of torch."""
    if name == "LLM":
        from loraplex.engine.offline.llm import LLM

        return LLM
    if name == "SamplingParams":
        from loraplex.engine.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'loraplex' has no attribute {name!r}")
