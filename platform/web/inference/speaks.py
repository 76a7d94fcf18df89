"""check_speaks: a model that generates no text is asked for none, and a refusal names what it is asked for instead."""

from loraplex.engine.pooling.wanted import PoolingKind
from loraplex.engine.protocol import EngineInfo

from ..adapters.engine_door import EngineDoor
from ..http.errors import invalid

EMBEDDINGS = "/v1/embeddings"


def check_speaks(engine: EngineDoor) -> None:
    """Raises ApiError for a model that generates no text."""
    info = engine.info
    if info is not None and info.why_silent:
        why = info.why_silent
        words = f"{why[0].upper()}{why[1:]}. Use {' or '.join(_instead(info))} instead."
        raise invalid(words, "model", "unsupported")


def _instead(info: EngineInfo) -> list[str]:
    """What the base answers. An adapter with a head of its own may answer more."""
    vectors = [] if info.pooling is None else [f"{EMBEDDINGS} for vectors"]
    if info.classes is None:
        return (
            [*vectors, "/score and /rerank to compare texts"]
            if vectors
            else ["/classify with an adapter that classifies"]
        )
    if info.classified_by is PoolingKind.ALL:
        return ["/pooling for the classes of tokens", *vectors]
    if len(info.classes.labels) == 1:
        return ["/score, /rerank or /classify for scores", *vectors]
    return ["/classify for classes", *vectors]
