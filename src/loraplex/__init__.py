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
    from loraplex.engine.offline.arguments import EngineArgs
    from loraplex.engine.offline.arguments import EngineArgs as AsyncEngineArgs
    from loraplex.engine.offline.async_llm import AsyncLLM, EngineDeadError
    from loraplex.engine.offline.async_llm import AsyncLLM as AsyncLLMEngine
    from loraplex.engine.offline.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from loraplex.engine.offline.llm import LLM
    from loraplex.engine.offline.llm_engine import LLMEngine
    from loraplex.engine.offline.lora_request import LoRARequest
    from loraplex.engine.offline.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from loraplex.engine.offline.pooling.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from loraplex.engine.offline.pooling.params import PoolingParams
    from loraplex.engine.offline.requests import random_uuid
    from loraplex.engine.sampling_params import RequestOutputKind, SamplingParams
    from loraplex.engine.structured_outputs import StructuredOutputs as StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "VLLMValidationError",
    "__version__",
    "random_uuid",
]
_PLACES = {
    "AsyncEngineArgs": ("offline.arguments", "EngineArgs"),
    "AsyncLLM": ("offline.async_llm", "AsyncLLM"),
    "AsyncLLMEngine": ("offline.async_llm", "AsyncLLM"),
    "EngineDeadError": ("offline.async_llm", "EngineDeadError"),
    "random_uuid": ("offline.requests", "random_uuid"),
    "BeamSearchOutput": ("offline.beam_search", "BeamSearchOutput"),
    "BeamSearchParams": ("offline.beam_search", "BeamSearchParams"),
    "BeamSearchSequence": ("offline.beam_search", "BeamSearchSequence"),
    "ClassificationOutput": ("offline.pooling.outputs", "ClassificationOutput"),
    "ClassificationRequestOutput": ("offline.pooling.outputs", "ClassificationRequestOutput"),
    "CompletionOutput": ("offline.outputs", "CompletionOutput"),
    "EmbeddingOutput": ("offline.pooling.outputs", "EmbeddingOutput"),
    "EmbeddingRequestOutput": ("offline.pooling.outputs", "EmbeddingRequestOutput"),
    "EngineArgs": ("offline.arguments", "EngineArgs"),
    "LLM": ("offline.llm", "LLM"),
    "LLMEngine": ("offline.llm_engine", "LLMEngine"),
    "LoRARequest": ("offline.lora_request", "LoRARequest"),
    "Logprob": ("offline.outputs", "Logprob"),
    "PoolingOutput": ("offline.pooling.outputs", "PoolingOutput"),
    "PoolingParams": ("offline.pooling.params", "PoolingParams"),
    "PoolingRequestOutput": ("offline.pooling.outputs", "PoolingRequestOutput"),
    "RequestMetrics": ("offline.outputs", "RequestMetrics"),
    "RequestOutput": ("offline.outputs", "RequestOutput"),
    "RequestOutputKind": ("sampling_params", "RequestOutputKind"),
    "SamplingParams": ("sampling_params", "SamplingParams"),
    "ScoringOutput": ("offline.pooling.outputs", "ScoringOutput"),
    "ScoringRequestOutput": ("offline.pooling.outputs", "ScoringRequestOutput"),
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
