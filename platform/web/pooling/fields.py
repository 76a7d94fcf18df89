"""check_members: members by which other services make another vector of the same input."""

from collections.abc import Mapping
from typing import Any, Final

from ..http.errors import invalid
from ..openai.fields import is_among
from .schemas import EmbeddingsRequest

INTO_INPUT: Final = "no text is put before an input but the model's default prompt. Write it into input instead"
ONE_SIZE: Final = "send dimensions"
FLOATS: Final = "numbers are floats. Leave it out, and round them in the client"
WHOLE: Final = "each input is a text of its own, with one vector. Leave it out"
INSTEAD: Final = {
    **dict.fromkeys(("task", "task_type", "input_type", "prompt_name", "prompt", "instruction", "title"), INTO_INPUT),
    **dict.fromkeys(("truncate_dim", "output_dimension", "output_dimensionality", "dimensionality"), ONE_SIZE),
    **dict.fromkeys(("embedding_types", "embedding_type", "output_dtype", "precision"), FLOATS),
    **dict.fromkeys(("late_chunking", "return_multivector"), WHOLE),
    "normalized": "send normalize",
    "messages": "an input is text. Send input",
}
"""Of Jina, Cohere, Voyage, Mistral, Nomic, Gemini and sentence-transformers: why each is refused, and what to do."""
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(("prompt", "instruction", "title"), ("",)),
    "embedding_types": (["float"], []),
    **dict.fromkeys(("embedding_type", "output_dtype"), ("float",)),
    "precision": ("float32",),
    **dict.fromkeys(("late_chunking", "return_multivector"), (False,)),
}
"""Values at which they change nothing."""


def check_members(body: dict[str, Any], schema: type[EmbeddingsRequest]) -> dict[str, Any]:
    """The body without those that change nothing. ApiError 400 names the first that would change a vector."""
    others = [name for name in INSTEAD if name in body and name not in schema.__struct_fields__]
    for name in others:
        if not is_among(body[name], NEUTRAL.get(name, ())):
            words = f"{name} is not supported and would change the embeddings: {INSTEAD[name]}."
            raise invalid(words, name, "unsupported")
    return {name: value for name, value in body.items() if name not in others}
