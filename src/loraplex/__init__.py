"""loraplex: one base model, many LoRA adapters, one server.

engine    token ids in, token ids out: scheduler, paged KV cache, models, the engine process
lora      what an adapter is, where it sits, how a batch of adapters is applied
quant     how a weight is stored and multiplied
registry  the database and the artifact store
web       HTTP: OpenAI API, admin API, dashboard
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loraplex.engine.field_types import ParameterError as VLLMValidationError
    from loraplex.engine.offline.llm import LLM
    from loraplex.engine.sampling_params import RequestOutputKind, SamplingParams
    from loraplex.engine.structured_outputs import StructuredOutputs as StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "VLLMValidationError",
    "__version__",
]
_PLACES = {
    "LLM": ("offline.llm", "LLM"),
    "RequestOutputKind": ("sampling_params", "RequestOutputKind"),
    "SamplingParams": ("sampling_params", "SamplingParams"),
    "StructuredOutputsParams": ("structured_outputs", "StructuredOutputs"),
    "VLLMValidationError": ("field_types", "ParameterError"),
}
"""name -> module below loraplex.engine, and the name there."""


def __getattr__(name: str) -> Any:
    """Import the offline API on first use, so that `import loraplex` stays free of torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'loraplex' has no attribute {name!r}")
    module, own_name = _PLACES[name]
    return getattr(importlib.import_module(f"loraplex.engine.{module}"), own_name)
