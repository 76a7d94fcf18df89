"""What an endpoint writes itself: how its requests become prompts and a spec (Call), and its answers (Format)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from loraplex.registry.adapters.routes import Asker

from ..http.errors import ApiError
from ..quotas.meters import Usage
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .generation import Answers, Delta, Generation
from .resolve import Served
from .spec import GenerationSpec


class RequestFields(Protocol):
    """What every request says: which model it is for, and how it is answered."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    def adapter_scales(self) -> Mapping[str, float] | None:
        """By name; None where `model` alone says what runs. Raises ApiError."""

    def asker(self, actor: str, request_id: str) -> Asker:
        """Whom an alias routes."""


class Format(Protocol):
    """The answer to one request in an API's terms, once: whole, or as a stream."""

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        """The whole answer. May run on a thread."""

    def events(self, delta: Delta, generation: Generation) -> bytes:
        """The events of a stream for one delta, possibly none."""

    def last_events(self, usage: Usage) -> bytes:
        """Those that follow the last delta, possibly none."""

    def ending(self, error: ApiError | None) -> bytes:
        """What a stream ends with in any case; `error`: it ended early."""


Keep = Callable[[Format, Usage], Awaitable[None]]
"""Awaited once an answer is complete, before its end is sent."""


class Call(Protocol):
    """One checked request to a model: a value, which a shadow copy runs once more."""

    wants_text: ClassVar[bool]
    """Else it asks for vectors, which every model may be asked for."""

    @property
    def fields(self) -> RequestFields: ...

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        """Token ids of its prompts. Raises ApiError."""

    def spec(self, served: Served, prompts: list[list[int]], max_model_len: int) -> tuple[GenerationSpec, Format]:
        """What to generate, and how that is told. Raises ApiError."""

    def explain_refusal(self, error: ApiError) -> ApiError:
        """A refusal in terms of the fields that this endpoint has."""

    def ending(self, error: ApiError | None) -> bytes:
        """As of a Format, for a stream that is refused before it has one. A ping has opened it."""
