"""`--data-dir`, which every word has that has to do with a data folder: the same as LORAPLEX_DATA_DIR."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

VARIABLE: Final = "LORAPLEX_DATA_DIR"
OPTION: Final = inspect.Parameter(
    "data_dir",
    inspect.Parameter.KEYWORD_ONLY,
    default="",
    annotation=Annotated[
        str,
        typer.Option(
            "--data-dir", metavar="FOLDER", help=f"The server's data folder; same as {VARIABLE}.", show_default=False
        ),
    ],
)


def with_data_dir(word: Callable[..., None]) -> Callable[..., None]:
    """The word with the option, where it has none of its own."""
    signature = inspect.signature(word, eval_str=True)
    if OPTION.name in signature.parameters:
        return word

    @functools.wraps(word)
    def run(*, data_dir: str, **values: Any) -> None:
        with _on(data_dir):
            word(**values)

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), OPTION])  # type: ignore[attr-defined]
    return run


@contextmanager
def _on(folder: str) -> Iterator[None]:
    """Settings are read from the environment wherever a word needs them."""
    before = os.environ.get(VARIABLE)
    if folder:
        os.environ[VARIABLE] = folder
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
