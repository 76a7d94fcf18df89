"""What a certificate is of on this server: the base as it is served now, beside its unquantized reference."""

import hashlib
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path

import loraplex
from loraplex.engine.certify.certificate import Certificate, CertifyJob, Coverage, prompts_digest
from loraplex.engine.certify.prompts import generated_prompts
from loraplex.engine.config import EngineConfig
from loraplex.engine.device.computing import Computing
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.identity.digest import state_digest
from loraplex.engine.model.served import kv_cache_words, positions_words, quantization_words
from loraplex.engine.startup.loaded_files import LoadedFiles
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.adapters.promotion import PromotionRule
from loraplex.registry.certificates.certificates import Measured, Subject

from ..settings.settings import Settings
from .digests import ModelDigests

FindComputing = Callable[[], Computing | None]
"""What the model is computed with where it runs; None: not known now."""


FindLoaded = Callable[[], LoadedFiles | None]
"""What the engine that serves has read; None: no engine has told."""


class ServedPath:
    """How the model in `folder` is served with these settings."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        computing: FindComputing,
        patience_seconds: float | None = None,
        loaded: FindLoaded = lambda: None,
    ) -> None:
        """`patience_seconds`: as of ModelDigests."""
        self._settings, self._folder = settings, folder
        self._digests, self._state = ModelDigests(settings.data_dir, patience_seconds), state_digest(folder)
        self._started_with: str | None = None
        self._same_states: set[str] = set()
        """Of the base's files, in which they had the bytes of the start."""
        self._model, self._find_computing, self._find_loaded = ModelConfig.from_folder(folder), computing, loaded
        self._kv_cache = self._kv_cache_words()

    def begin(self) -> None:
        """Have the base's files read, so that nobody waits for it later."""
        self._digests.begin(self._folder)

    def serving(self, fingerprint: str) -> str:
        """Digest of the settings that certificates depend on: servers with the same measure for each other, also where
        their processors or libraries differ. `fingerprint`: of the base."""
        engine, reference = self._engine(), self._settings.certificate_reference
        words = quantization_words(self._model, engine), self._kv_cache, positions_words(self._model, engine)
        parts = fingerprint, *words, engine.device, str(reference)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def coverage(self, subject: Subject) -> Coverage:
        """All that a certificate of it must have been measured with to be valid now.

        ValueError says why none can be: there is no reference, the engine has never started, files are still being
        read, or the base or its static scales are not those of the start any more.
        """
        if self._kv_cache_words() != self._kv_cache:
            raise ValueError("the static KV-cache scales have changed since the start. Restart the server.")
        loaded = self._find_loaded()
        if loaded is not None and loaded.kv_cache != self._kv_cache:
            raise ValueError(
                "the engine has loaded different static KV-cache scales since the start. Restart the server."
            )
        base, computing = self._base_digest(), self._computing()
        return Coverage(
            base=base,
            reference=self._reference_digest(base),
            quantization=quantization_words(self._model, self._engine()),
            kv_cache_dtype=self._kv_cache,
            positions=positions_words(self._model, self._engine()),
            arithmetic=computing.arithmetic,
            runtime=computing.runtime,
            adapter=subject.adapter,
            prompts=prompts_of(subject),
            version=loraplex.__version__,
        )

    def digest(self, subject: Subject) -> str:
        """Of its coverage."""
        return self.coverage(subject).digest()

    def job(self, subject: Subject, adapter: Path | None, prompts: list[str] | None) -> CertifyJob:
        """What has to be compared. `adapter` is the folder of its files."""
        reference = self._settings.certificate_reference
        return CertifyJob(
            self._engine(),
            reference=None if reference is None else str(reference),
            adapter=None if adapter is None else str(adapter),
            adapter_digest=subject.adapter,
            prompts=prompts,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The base's, with which prompts are read."""
        return Tokenizer(self._folder)

    def _kv_cache_words(self) -> str:
        return kv_cache_words(self._model, self._engine())

    def _engine(self) -> EngineConfig:
        return self._settings.engine_config(self._folder)

    def _computing(self) -> Computing:
        """Asked for each time: an engine that was started again may have come with other libraries."""
        found = self._find_computing()
        if found is None:
            raise ValueError("the engine has not started yet.")
        return found

    def _base_digest(self) -> str:
        """Of what the engine loaded."""
        state = state_digest(self._folder)
        found = self._digests.of(self._folder)
        if self._started_with is None and state_digest(self._folder) == self._state:
            self._started_with = found
        if found != self._started_with:
            raise ValueError("the base's files have changed since the start. Restart the server.")
        if state_digest(self._folder) == state:
            self._same_states.add(state)
        loaded = self._find_loaded()
        if loaded is not None and loaded.base not in self._same_states:
            raise ValueError("the engine has loaded different base files since the start. Restart the server.")
        return found

    def _reference_digest(self, base: str) -> str:
        """Of the unquantized model."""
        folder = self._settings.certificate_reference
        if folder is not None:
            try:
                ModelConfig.from_folder(folder)  # says what is no model
            except OSError as error:
                raise ValueError(f"the reference {folder} cannot be read: {error.strerror}") from error
            return self._digests.of(folder)
        if self._model.quantization is not None:
            raise ValueError(
                "the base is a quantized checkpoint, so there is nothing to compare it with. Set certificate_reference "
                "to the folder of the unquantized one."
            )
        return base


def measured(certificate: Certificate) -> Measured:
    """The certificate as the registry keeps it."""
    return Measured(certificate.coverage.digest(), certificate.both.top1_agreement, certificate.to_json())


def promotion_rule(settings: Settings, served: ServedPath) -> PromotionRule | None:
    """What the operator asks of a version before an alias may point at it; None: nothing."""
    if settings.promotion_min_agreement is None:
        return None
    return PromotionRule(settings.promotion_min_agreement, served.digest)


def prompts_of(subject: Subject) -> str:
    """The digest of those that it is measured on."""
    return subject.prompts or _generated()


@cache
def _generated() -> str:
    return prompts_digest(generated_prompts())
