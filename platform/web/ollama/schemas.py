"""Bodies of Ollama's API as its clients send them. Null members are dropped before, but for nested ones."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..openai.schemas import MAX_MESSAGES, Int64, Name, Penalty, Tops
from ..openai.tools.tools import MAX_TOOLS, Tool
from ..pooling.schemas import Dimensions


class Options(msgspec.Struct, kw_only=True):
    """Those that change an answer here. The others are checked in `options.py`."""

    num_predict: Annotated[int, Meta(ge=-2, lt=2**31)] | None = None
    """Below zero: as much as there is room for."""
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None


class Asked(msgspec.Struct, kw_only=True):
    """What both kinds of requests share."""

    model: Name
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] = ""
    options: Options = msgspec.field(default_factory=Options)
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: float | str | None = None
    logprobs: bool = False
    top_logprobs: Tops = 0


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class Call(msgspec.Struct, kw_only=True):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    """Of a tool's result: which one it is."""
    name: str | None = None
    tool_call_id: str | None = None


class OllamaChat(Asked, kw_only=True):
    messages: Annotated[list[Message], Meta(max_length=MAX_MESSAGES)] = []
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None


class OllamaGenerate(Asked, kw_only=True):
    prompt: str = ""
    system: str = ""
    raw: bool = False
    """The prompt as it is, without a chat template."""


class OllamaEmbed(msgspec.Struct, kw_only=True):
    model: Name
    input: str | Annotated[list[str], Meta(min_length=1)]
    truncate: bool = True
    dimensions: Dimensions | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] = {}

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class OllamaEmbedding(msgspec.Struct, kw_only=True):
    model: Name
    prompt: str
    keep_alive: float | str | None = None
    options: dict[str, Any] = {}


class Show(msgspec.Struct, kw_only=True):
    model: Name | None = None
    name: Name | None = None
    """The older name of `model`."""
    verbose: bool = False
