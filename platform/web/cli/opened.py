"""The registry for commands that work beside a running server or without one.

What it takes is imported as one is opened: the same words ask a server, and need none of it then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from ..settings.data_folder import prepare_data_folder
from ..settings.settings import Settings

if TYPE_CHECKING:
    from loraplex.registry.base import ServedBase
    from loraplex.registry.registry import Registry

    from ..certificates.served import ServedPath


@contextmanager
def opened_registry(settings: Settings) -> Iterator[tuple["Registry", "ServedBase"]]:
    """The registry of the data folder, migrated, with the base model known. A running server sees changes at once."""
    from loraplex.engine.model.config import base_signature
    from loraplex.engine.model.folder import resolve_model_folder
    from loraplex.registry.base import ServedBase
    from loraplex.registry.database.migrate import upgrade
    from loraplex.registry.registry import Registry

    from ..certificates.served import promotion_rule

    folder = resolve_model_folder(settings.model)
    base = ServedBase(settings.base_name, base_signature(folder), settings.trained_name, folder, settings.other_names)
    prepare_data_folder(settings.data_dir)
    upgrade(settings.database)
    served, artifacts = served_path(settings, base), settings.data_dir / "artifacts"
    rule, serving = promotion_rule(settings, served), served.serving(base.signature.fingerprint)
    registry = Registry.open(settings.database, artifacts, base, int(settings.min_free_bytes), rule, serving)
    try:
        yield registry, base
    finally:
        registry.close()


@contextmanager
def opened_database(settings: Settings) -> Iterator["Registry"]:
    """The same without a base model, for words that touch no adapter."""
    from loraplex.registry.database.migrate import upgrade
    from loraplex.registry.registry import Registry

    prepare_data_folder(settings.data_dir)
    upgrade(settings.database)
    registry = Registry.open(settings.database, settings.data_dir / "artifacts")
    try:
        yield registry
    finally:
        registry.close()


def served_path(settings: Settings, base: "ServedBase") -> "ServedPath":
    """How this machine serves the base."""
    from loraplex.engine.device.arithmetic import computing_here

    from ..certificates.served import ServedPath

    assert base.folder is not None
    return ServedPath(settings, base.folder, cache(partial(computing_here, settings.engine_config(base.folder))))
