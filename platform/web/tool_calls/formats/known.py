"""All styles by name, and the one of a model."""

from typing import Final, Literal, get_args

from .harmony import HARMONY
from .hermes import HERMES
from .llama3_json import LLAMA3_JSON
from .mistral import MISTRAL
from .style import Style

ToolCallParser = Literal["auto", "hermes", "llama3_json", "mistral", "harmony"]
PARSERS: Final[tuple[str, ...]] = get_args(ToolCallParser)
STYLES: Final = {style.name: style for style in (HERMES, LLAMA3_JSON, MISTRAL, HARMONY)}
AUTO: Final = "auto"


def style_of(parser: str, template: str) -> Style | None:
    """The style of this name; with auto the only one that the chat template surely teaches, else None."""
    if parser != AUTO:
        return STYLES[parser]
    matching = [style for style in STYLES.values() if style.matches(template)]
    return matching[0] if len(matching) == 1 else None
