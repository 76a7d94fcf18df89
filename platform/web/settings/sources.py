"""Where settings come from beside flags: the TOML file and the environment, in which no misspelt name stays unseen."""

import difflib
import logging
import os
import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parents[3]
"""The checkout this file is in; an installed package has no pyproject.toml there."""
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file()
DEFAULT_DATA_DIR = ROOT / ".data" if IN_CHECKOUT else Path.home() / ".local" / "share" / "loraplex"
CONFIG_FILE = "loraplex.toml"
PREFIX = "LORAPLEX_"
Source = Literal["flag", "environment", "file", "default", "computed"]
FLAG: Final = "flag"
ENVIRONMENT: Final = "environment"
FILE: Final = "file"
DEFAULT: Final = "default"
COMPUTED: Final = "computed"
LOG = logging.getLogger(__name__)
OF_CLIENTS: Final = ("server", "key")
"""LORAPLEX_SERVER and LORAPLEX_KEY, which words of the command line read."""


def config_file(flags: dict[str, Any]) -> Path:
    """The TOML file to read: LORAPLEX_CONFIG, which must exist, else loraplex.toml in the data folder."""
    named = os.environ.get("LORAPLEX_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ValueError(f"LORAPLEX_CONFIG names {named}, which is not a file")
        return Path(named)
    data_dir = flags.get("data_dir") or os.environ.get("LORAPLEX_DATA_DIR") or DEFAULT_DATA_DIR
    return Path(data_dir) / CONFIG_FILE


def read_file(file: Path) -> dict[str, Any]:
    """What the file sets; nothing where there is none."""
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def sources_of(flags: Collection[str], in_file: Collection[str]) -> dict[str, Source]:
    """Setting -> where its value is from, without those that have their default."""
    prefix = PREFIX.lower()
    in_environment = [name.lower().removeprefix(prefix) for name in os.environ if name.lower().startswith(prefix)]
    sources: dict[str, Source] = dict.fromkeys(in_file, FILE)
    sources |= dict.fromkeys(in_environment, ENVIRONMENT)
    return sources | dict.fromkeys(flags, FLAG)


def refuse_unknown(file: Path, values: dict[str, Any], settings: type[BaseSettings]) -> None:
    for name in values:
        if name not in settings.model_fields:
            raise ValueError(f"{file} sets '{name}', which is not a setting.{_nearest(name, settings)}")


def warn_of_unknown_variables(settings: type[BaseSettings]) -> None:
    """Only a warning: other programs may use the prefix."""
    for variable in sorted(os.environ):
        name = variable.lower().removeprefix(PREFIX.lower())
        if variable.upper().startswith(PREFIX) and name not in {*settings.model_fields, "config", *OF_CLIENTS}:
            _warn(f"{variable} is ignored: it is not a setting.{_nearest(name, settings, PREFIX)}")


@cache
def _warn(words: str) -> None:
    """Once, however often settings are read."""
    LOG.warning("%s", words)


def _nearest(name: str, settings: type[BaseSettings], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, settings.model_fields, n=1)
    return "" if not near else f" Did you mean {prefix + near[0].upper() if prefix else near[0]}?"
