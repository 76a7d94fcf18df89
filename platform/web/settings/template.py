"""The operator's chat template: a file, or the template itself, as vLLM takes it."""

from pathlib import Path
from typing import Final

MARKS: Final = ("{", "}", "\n")
"""One of them is in every template, and rarely in a path."""


def read_template(given: str) -> str:
    """Its source. ValueError where it is neither."""
    path = Path(given).expanduser() if len(given) < 4096 else None
    try:
        if path is not None and path.is_file():
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"chat_template: {given} cannot be read: {error}. Name a readable UTF-8 file") from None
    if any(mark in given for mark in MARKS):
        return given
    raise ValueError(f"chat_template: there is no file {given}, and the text is no Jinja template. Name a file")
