"""What Ollama's API answers, as types that a document can be made of."""

from typing import Any, Literal, NotRequired, TypedDict


class Counts(TypedDict):
    """Durations in nanoseconds. An answer to a request without words has none of them."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    logprobs: NotRequired[list[dict[str, Any]]]


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]


class OllamaChatAnswer(Counts):
    message: OllamaMessage


class OllamaGenerateAnswer(Counts):
    response: str
    thinking: NotRequired[str]


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class RunningModel(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(TypedDict):
    models: list[RunningModel]


class OllamaShown(TypedDict):
    modelfile: str
    parameters: str
    template: str
    system: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVectors(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(TypedDict):
    embedding: list[float]


class OllamaVersion(TypedDict):
    version: str
