"""State: everything a request may need, made once at start and found at `app.state.loraplex`.

A handler asks for the part that it uses (`endpoints/dependencies.py`).
"""

import asyncio
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from loraplex.engine.certify.child import certify
from loraplex.engine.device.computing import Computing
from loraplex.engine.ipc.client import EngineClient
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.startup.loaded_files import LoadedFiles
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.base import ServedBase
from loraplex.registry.credentials import Credentials, ensure_credentials
from loraplex.registry.database.migrate import upgrade
from loraplex.registry.registry import Registry
from loraplex.registry.usage.ledger import Ledger

from .access.password_worker import PasswordWorker
from .access.sessions import Sessions
from .adapters.effect_check import EffectCheck
from .adapters.engine_door import EngineDoor
from .adapters.name_locks import NameLocks
from .adapters.reconciler import Reconciler
from .adapters.upload_slots import UploadSlots
from .audit.chain_check import ChainCheck
from .certificates.certifier import Certifier, Certify
from .certificates.served import ServedPath, promotion_rule
from .http.limits import Slots
from .inference.inference import Inference
from .observability.database_watch import DatabaseWatch
from .observability.metrics import Metrics
from .observability.tracing import Tracing
from .quotas.quotas import Quotas
from .routing.callers import RecentCallers
from .routing.guard import GuardKeeper
from .routing.shadow_pool import ShadowPool
from .routing.tallies import Tallies
from .settings.data_folder import prepare_data_folder
from .settings.loopback import is_loopback
from .settings.settings import Settings
from .text.text_processor import Template, TextProcessor, base_text_processor
from .text.text_processor_cache import TextProcessorCache
from .text.token_text import TokenText
from .usage.bookkeeping import Bookkeeper

DIGEST_SECONDS: Final = 5.0
"""That a request waits for the digest of the model's files, which is taken in the background from the start on."""


class UsedKeys:
    """When each key was last used, until the reconciler writes it down."""

    def __init__(self) -> None:
        self._moments: dict[str, datetime] = {}

    def note(self, prefix: str) -> None:
        self._moments[prefix] = datetime.now(UTC)

    def last(self, prefix: str) -> datetime | None:
        """What is not written down yet."""
        return self._moments.get(prefix)

    def take(self) -> dict[str, datetime]:
        taken, self._moments = self._moments, {}
        return taken


@dataclass(slots=True, kw_only=True)
class State(Inference):
    registry: Registry
    base: ServedBase
    model_folder: Path
    credentials: Credentials
    sessions: Sessions
    database_watch: DatabaseWatch
    effect_check: EffectCheck
    served_path: ServedPath
    certifier: Certifier
    bookkeeper: Bookkeeper
    guard: GuardKeeper
    chain: ChainCheck
    uploads: UploadSlots
    passwords: PasswordWorker = field(default_factory=PasswordWorker)
    used_keys: UsedKeys = field(default_factory=UsedKeys)
    local_key: str = field(default_factory=partial(secrets.token_urlsafe, 32), repr=False)
    """The operator's, for words of the command line that may read the data folder (`running_server.py`)."""
    name_locks: NameLocks = field(default_factory=NameLocks)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first start of the engine has ended, well or not."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set some time after `stopping`: what ran has ended, well or with an error."""
    start_error: str | None = None
    created: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp()))
    """Unix time of the start; the base model's `created`."""

    @property
    def text_processor(self) -> TextProcessor:
        """The base's."""
        return self.text_processors.base

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text_processor.tokenizer

    @property
    def token_text(self) -> TokenText:
        return self.text_processor.token_text

    @property
    def template(self) -> Template | None:
        return self.text_processor.template


def open_state(
    settings: Settings, model_folder: Path, engine: EngineDoor | None = None, certify: Certify = certify
) -> State:
    """Migrate the database, make the credentials, read the model's small files. ValueError says what is wrong.

    `model_folder` is where `settings.model` lies; `engine` and `certify` are for tests.
    """
    prepare_data_folder(settings.data_dir)
    model, tokenizer = ModelConfig.from_folder(model_folder), Tokenizer(model_folder)
    signature = base_signature(model_folder)
    base = ServedBase(settings.base_name, signature, settings.trained_name, model_folder, settings.other_names)
    text_processor = base_text_processor(
        tokenizer,
        settings.max_prompt_chars,
        settings.tool_call_parser,
        settings.reasoning_parser,
        settings.template_source,
    )
    upgrade(settings.database)
    door: EngineDoor = engine or EngineClient(settings.engine_config(model_folder))
    served_path = ServedPath(settings, model_folder, partial(_computing, door), DIGEST_SECONDS, partial(_loaded, door))
    served_path.begin()
    rule, artifacts = promotion_rule(settings, served_path), settings.data_dir / "artifacts"
    serving, least_free = served_path.serving(signature.fingerprint), int(settings.min_free_bytes)
    registry = Registry.open(settings.database, artifacts, base, least_free, rule, serving)
    credentials = ensure_credentials(
        registry,
        settings.data_dir / "credentials.json",
        settings.admin_password_text,
        settings.api_keys,
        may_be_weak=is_loopback(settings.host),
    )
    ledger = Ledger(registry.database, settings.data_dir / "usage")
    quotas = Quotas(ledger, registry.snapshots)
    bookkeeper = Bookkeeper(ledger, registry.usage, quotas)
    metrics, reconciler, tallies = Metrics(settings.base_name), Reconciler(door, registry.snapshots), Tallies()
    bookkeeper.begin(metrics.hours)
    return State(
        settings=settings,
        registry=registry,
        base=base,
        engine=door,
        snapshots=registry.snapshots,
        model_folder=model_folder,
        model=model,
        text_processors=TextProcessorCache(
            text_processor,
            model.eos_token_ids,
            registry.tokenizers,
            settings.max_prompt_chars,
            settings.adapter_tokenizers,
        ),
        credentials=credentials,
        sessions=Sessions(registry.users, registry.sessions, registry.audit, settings.session_hours),
        metrics=metrics,
        reconciler=reconciler,
        database_watch=DatabaseWatch(registry.snapshots, settings.database, settings.data_dir),
        effect_check=EffectCheck(door, reconciler, registry.store, signature.vocab_size),
        served_path=served_path,
        certifier=Certifier(registry, served_path, certify, settings.certificate_timeout),
        quotas=quotas,
        bookkeeper=bookkeeper,
        tallies=tallies,
        callers=RecentCallers(),
        guard=GuardKeeper(registry, tallies, reconciler),
        shadows=ShadowPool(door, tallies, metrics),
        chain=ChainCheck(registry.audit.verify),
        tracing=Tracing(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None,
        requests=Slots(settings.max_concurrent_requests, "requests in flight"),
        background=Slots(settings.batch_concurrency, "lines of batches in flight"),
        uploads=UploadSlots(settings.max_concurrent_uploads),
    )


def _computing(door: EngineDoor) -> Computing | None:
    """As the engine told when it last started."""
    return None if door.info is None else Computing(door.info.arithmetic, door.info.runtime)


def _loaded(door: EngineDoor) -> LoadedFiles | None:
    """As above. Engines of tests read no files."""
    info = door.info
    return LoadedFiles(info.base_files, info.kv_cache_files) if info is not None and info.base_files else None
