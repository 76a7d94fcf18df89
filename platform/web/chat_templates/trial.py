"""try_template: does a chat template make a prompt of a simple conversation?"""

from collections.abc import Mapping
from typing import Final

from .chat_template import TemplateFailure
from .job import RenderJob
from .process import TemplateProcess

MESSAGES: Final = [{"role": "user", "content": "Hello"}]
MAX_CHARS: Final = 100_000


def try_template(source: str, named_tokens: Mapping[str, str]) -> str | None:
    """Why not, or None. In a process of its own; blocks. ApiError where that does not start in time."""
    process = TemplateProcess()
    try:
        text = process.render(RenderJob(source, dict(named_tokens), MAX_CHARS, MESSAGES))
    except TemplateFailure as error:
        return f"its chat template cannot be used: {error}"
    finally:
        process.close()
    return None if text.strip() else "its chat template renders a simple conversation as empty text"
