"""What is wrong with the settings, in words: which one, why, and where to give another value."""

from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from .sources import CONFIG_FILE, PREFIX

OUR_OWN: Final = "Value error, "
"""What pydantic puts before the words of a ValueError, which say by themselves what to do."""


def error_lines(error: ValidationError) -> Iterator[str]:
    """One line for each problem."""
    for problem in error.errors(include_input=False, include_url=False):
        name, words = ".".join(str(part) for part in problem["loc"]), problem["msg"]
        if words.startswith(OUR_OWN):
            words = words.removeprefix(OUR_OWN)
            yield f"{name}: {words}" if name else words
        else:
            flag = name.replace("_", "-")
            yield f"{name}: {words}. Change --{flag}, {PREFIX}{name.upper()} or the line in {CONFIG_FILE}"
