"""Words whose modules are imported when they are typed: a help that names them all waits for none of them."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .data_dir import with_data_dir
from .ending import ending_at_once


def add_word(
    app: typer.Typer, name: str, module: str, help: str, epilog: str | None = None, on_folder: bool = True
) -> None:
    """Add the word that `module` keeps as `name`, or the group that it keeps as `app`.

    `module`: below this package, as `serve.doctor`. Its `Command`, if it has one, reads what follows the word. `help`:
    what the help of `app` says of it, a command's docstring or a group's own help. `on_folder`: it has to do with a
    data folder.
    """

    def written() -> Any:
        """The word itself, a click command."""
        with ending_at_once():
            found = import_module(f".{module}", __package__)
        group: typer.Typer | None = getattr(found, "app", None)
        alone = typer.Typer(add_completion=False)
        alone.callback()(lambda: None)  # a group though it has one word
        if group is None:
            word = getattr(found, name.replace("-", "_"))
            kind = getattr(found, "Command", TyperCommand)
            alone.command(name, epilog=epilog, cls=kind)(with_data_dir(word) if on_folder else word)
        else:
            for one in group.registered_commands:
                if on_folder and one.cls is not Later and one.callback is not None:
                    one.callback = with_data_dir(one.callback)
            alone.add_typer(group, name=name)
        words = get_command(alone)
        assert isinstance(words, TyperGroup)
        return words.commands[name]

    app.command(name, help=help, cls=Later)(written)


class Later(TyperCommand):
    """Stands for a word in the help of its group, and lets the word itself read what follows it."""

    def written(self) -> Any:
        """The word itself, whose module is imported now."""
        assert self.callback is not None
        return self.callback()

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return self.written().make_context(info_name, args, parent, **extra)
