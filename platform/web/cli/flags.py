"""Settings as flags: the options are made from the fields of `Settings`, so that `serve` can forget none."""

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from loraplex.engine.config import EngineConfig

from ..settings.settings import Settings
from .help_words import format_default, placeholder


def settings_flags(
    command: Callable[..., None],
    names: Collection[str] = tuple(Settings.model_fields),
    read: Callable[..., Settings] = Settings,
) -> Callable[..., None]:
    """Give `command(settings, **own)` an option for each of these settings, or for all; what is not given is left to
    `read`, by default to environment and file."""
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "settings"]

    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in list(values) if name in Settings.model_fields}
        command(read(**{name: value for name, value in given.items() if value is not None}), **values)

    options = [_option(name) for name in names]
    run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    return run


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    is_switch = field.annotation is bool
    flag = name.replace("_", "-")
    declaration = f"--{flag}/--no-{flag}" if is_switch and not name.startswith("no_") else f"--{flag}"
    default = format_default(field.default)
    option = typer.Option(
        declaration,
        help=f"{field.description}{'' if default is None else f' (default: {default})'}",
        metavar="" if is_switch else placeholder(name, field.annotation),
        show_default=False,
        rich_help_panel=_panel(name),
    )
    kind = bool if is_switch else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _panel(name: str) -> str:
    if name in EngineConfig.__struct_fields__ and name != "model":
        return "Engine"
    limits = name.startswith(("max_", "min_")) or name.endswith(("_timeout", "_seconds", "_hours"))
    return "Limits" if limits else "Server"
