"""The parts of `State` that the admin API uses in this process, found at `app.state.loraplex` as on a server."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ...access.password_worker import PasswordWorker
from ...audit.chain_check import ChainCheck
from ...settings.settings import Settings
from ..opened import opened_database, opened_registry, served_path
from ..settings_here import settings_here
from .no_engine import NoEffectCheck, NoEngine, NoReconciler, NoUse

if TYPE_CHECKING:
    from loraplex.engine.model.config import ModelConfig
    from loraplex.registry.base import ServedBase
    from loraplex.registry.registry import Registry

    from ...certificates.served import ServedPath
    from ...text.text_processor_cache import TextProcessorCache

ANY_SIZE: Final = 1 << 62


class LocalState:
    """For routes that touch no adapter."""

    def __init__(self, settings: Settings, registry: "Registry") -> None:
        self.settings, self.registry = settings, registry
        self.local_key = secrets.token_urlsafe(32)
        self.passwords = PasswordWorker()
        self.chain = ChainCheck(registry.audit.verify)
        self.reconciler = NoReconciler(registry.snapshots)


class LocalAdapters(LocalState):
    """For routes of adapters, too."""

    def __init__(self, settings: Settings, registry: "Registry", base: "ServedBase") -> None:
        from ...adapters.upload_slots import UploadSlots
        from ...routing.callers import RecentCallers

        assert base.folder is not None
        super().__init__(settings, registry)
        self.base, self.model_folder = base, base.folder
        self.engine, self.metrics, self.effect_check = NoEngine(), NoUse(), NoEffectCheck()
        self.uploads, self.callers = UploadSlots(1), RecentCallers()

    @cached_property
    def served_path(self) -> "ServedPath":
        return served_path(self.settings, self.base)

    @cached_property
    def model(self) -> "ModelConfig":
        from loraplex.engine.model.config import ModelConfig

        return ModelConfig.from_folder(self.model_folder)

    @property
    def max_model_len(self) -> int:
        return self.model.length(self.settings.max_model_len)

    @cached_property
    def text_processors(self) -> "TextProcessorCache":
        from loraplex.engine.text.tokenizer import Tokenizer

        from ...text.text_processor import base_text_processor
        from ...text.text_processor_cache import TextProcessorCache

        chars = self.settings.max_prompt_chars
        base = base_text_processor(Tokenizer(self.model_folder), chars, template_source=self.settings.template_source)
        stops = self.model.eos_token_ids
        return TextProcessorCache(base, stops, self.registry.tokenizers, chars, self.settings.adapter_tokenizers)

    def close(self) -> None:
        if "text_processors" in vars(self):
            self.text_processors.close()


@contextmanager
def database_state() -> Iterator[LocalState]:
    """Raises ValueError where the data folder or its database is not usable."""
    settings = Settings()
    with opened_database(settings) as registry:
        yield LocalState(settings, registry)


@contextmanager
def registry_state() -> Iterator[LocalAdapters]:
    """As above, and where the model is not. Only the disk bounds what is added here."""
    settings = settings_here().model_copy(update={"max_adapter_bytes": ANY_SIZE})
    with opened_registry(settings) as (registry, base):
        state = LocalAdapters(settings, registry, base)
        try:
            yield state
        finally:
            state.close()
