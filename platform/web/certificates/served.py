"""What a certificate is of on this server: the base as it is served now, beside its unquantized reference."""

from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import loraplex
from loraplex.engine.certificate import Certificate, CertifyJob, Coverage, prompts_digest
from loraplex.engine.certify.prompts import generated_prompts
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.served import kv_cache_words, quantization_words
from loraplex.registry.certificates import Measured, Subject
from loraplex.registry.promotion import PromotionRule

from ..settings import Settings

ENGINE_FIELDS: Final = {field.name for field in fields(CertifyJob)} & set(EngineConfig.__struct_fields__)
"""What a job and an engine must have alike."""


class ServedPath:
    """How the model in `folder`, whose fingerprint is `base`, is served with these settings."""

    def __init__(self, settings: Settings, folder: Path, base: str) -> None:
        self._settings, self._folder, self._base = settings, folder, base
        self._model = ModelConfig.from_folder(folder)
        self._kv_cache = self._kv_cache_words()

    def coverage(self, subject: Subject) -> Coverage:
        """All that a certificate of it must have been measured with to be valid now.

        ValueError says why none can be: there is no reference, or static scales are not those of the start any more.
        """
        if self._kv_cache_words() != self._kv_cache:
            raise ValueError("the static scales of the KV cache have changed since the start. Restart the server.")
        engine, model = self._settings.engine_config(self._folder), self._model
        return Coverage(
            base=self._base,
            reference=self._reference,
            quantization=quantization_words(model, engine.quantization, engine.head_quantization, engine.dtype),
            kv_cache_dtype=self._kv_cache,
            adapter=subject.adapter,
            prompts=subject.prompts or _generated(),
            version=loraplex.__version__,
        )

    def job(self, subject: Subject, adapter: Path | None, prompts: list[str] | None) -> CertifyJob:
        """What has to be compared. `adapter` is the folder of its files."""
        settings, engine = self._settings, self._settings.engine_config(self._folder)
        return CertifyJob(
            reference=None if settings.certificate_reference is None else str(settings.certificate_reference),
            **{name: getattr(engine, name) for name in ENGINE_FIELDS},
            adapter=None if adapter is None else str(adapter),
            adapter_digest=subject.adapter,
            prompts=prompts,
        )

    def _kv_cache_words(self) -> str:
        engine = self._settings.engine_config(self._folder)
        return kv_cache_words(
            self._model, engine.kv_cache_dtype, engine.dtype, engine.kv_cache_scales, engine.kv_scales_file
        )

    @cached_property
    def _reference(self) -> str:
        """The fingerprint of the unquantized model."""
        folder = self._settings.certificate_reference
        if folder is not None:
            try:
                return base_signature(folder).fingerprint
            except OSError as error:
                raise ValueError(f"the reference {folder} cannot be read: {error.strerror}") from error
        if self._model.quantization is not None:
            raise ValueError(
                "the base is a quantized checkpoint, so there is nothing to compare it with. Set certificate_reference "
                "to the folder of the unquantized one."
            )
        return self._base


def measured(certificate: Certificate) -> Measured:
    """The certificate as the registry keeps it."""
    return Measured(certificate.coverage.digest(), certificate.both.top1_agreement, certificate.to_json())


def promotion_rule(settings: Settings, served: ServedPath) -> PromotionRule | None:
    """What the operator asks of a version before an alias may point at it; None: nothing."""
    if settings.promotion_min_agreement is None:
        return None
    return PromotionRule(settings.promotion_min_agreement, lambda subject: served.coverage(subject).digest())


@cache
def _generated() -> str:
    return prompts_digest(generated_prompts())
