"""Making a version of an adapter's files; shared by the admin API, the dashboard and the command line."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loraplex.registry.adapter_tokenizer import AdapterTokenizer
from loraplex.registry.adapters import AddedVersion
from loraplex.registry.artifacts import CONFIG_FILE, WEIGHTS_FILE, Blob
from loraplex.registry.base import ServedBase
from loraplex.registry.certificates import CoverageOf
from loraplex.registry.errors import UploadMissing, UploadTooLarge
from loraplex.registry.preflight import Prepared
from loraplex.registry.registry import Registry
from loraplex.registry.report import Report
from loraplex.registry.tables import DEFAULT_TENANT

from .adapter_tokenizers.check import Terms, check_tokenizer
from .adapter_tokenizers.files import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, TOKENIZER_LIMITS
from .auth import Caller
from .state import State

FIELDS: Final = {
    CONFIG_FILE: "config_sha256",
    WEIGHTS_FILE: "weights_sha256",
    TOKENIZER_FILE: "tokenizer_sha256",
    SETTINGS_FILE: "tokenizer_config_sha256",
    TEMPLATE_FILE: "chat_template_sha256",
}
"""File of an adapter -> what its SHA-256 is called in requests. Those of the tokenizer may be missing."""


async def register_version(
    state: State, caller: Caller, name: str, digests: Mapping[str, str], chosen: bool
) -> tuple[AddedVersion, Report]:
    """Check the received files, make them what `name` means, and bring the engine to it. Raises RegistryError.

    `digests`: file -> SHA-256. `chosen`: whether the tokenizer's files were sent on purpose or lay beside the adapter.
    """
    added = await asyncio.to_thread(_add, state, caller, name, digests, chosen)
    await state.reconciler.reconcile()
    return added


async def check_version(state: State, caller: Caller, name: str, digests: Mapping[str, str], chosen: bool) -> Report:
    """What register_version would find in the received files; nothing is changed. Raises RegistryError."""
    return await asyncio.to_thread(_check, state, caller, name, digests, chosen)


def uploaded_file(state: State, caller: Caller, sha256: str) -> Blob:
    """The file with this SHA-256 that the caller's tenant has sent. Raises UploadMismatch (the SHA-256 is none),
    UploadMissing."""
    blob = state.registry.uploads.find(sha256, caller.tenant)
    if blob is None:
        raise UploadMissing(f"No file with SHA-256 {sha256} is here. Upload it with PUT first.")
    return blob


def add_from_folder(
    registry: Registry,
    base: ServedBase,
    name: str,
    folder: Path,
    actor: str,
    tokenizers: bool = False,
    certify: CoverageOf | None = None,
) -> tuple[AddedVersion, Report]:
    """Copy an adapter's files from a folder into the store and register them. Raises RegistryError, ValueError.

    `tokenizers`: the operator's switch for those that adapters bring; `certify`: as Adapters.add_version takes it.
    """
    registry.adapters.check_name(name)
    beside = [file for file in TOKENIZER_LIMITS if (folder / file).is_file()]
    files = {file: _copied(registry, folder / file) for file in (CONFIG_FILE, WEIGHTS_FILE, *beside)}
    return _checked(registry, base, name, files, Terms(tokenizers, chosen=False), certify, actor)


def _check(state: State, caller: Caller, name: str, digests: Mapping[str, str], chosen: bool) -> Report:
    state.registry.adapters.check_name(name)
    files = {file: uploaded_file(state, caller, digest) for file, digest in digests.items()}
    terms = Terms(state.settings.adapter_tokenizers, chosen)
    return _prepared(state.registry, state.base, files, terms)[2]


def _add(
    state: State, caller: Caller, name: str, digests: Mapping[str, str], chosen: bool
) -> tuple[AddedVersion, Report]:
    state.registry.adapters.check_name(name)
    files = {file: uploaded_file(state, caller, digest) for file, digest in digests.items()}
    terms = Terms(state.settings.adapter_tokenizers, chosen)
    certify = state.served_path.digest if state.settings.certify_uploads else None
    return _checked(state.registry, state.base, name, files, terms, certify, caller.actor, caller.tenant)


def _checked(
    registry: Registry,
    base: ServedBase,
    name: str,
    files: Mapping[str, Blob],
    terms: Terms,
    certify: CoverageOf | None,
    actor: str,
    tenant: str = DEFAULT_TENANT,
) -> tuple[AddedVersion, Report]:
    ready, tokenizer, report = _prepared(registry, base, files, terms)
    added = registry.adapters.add_version(
        name,
        ready.config,
        ready.weights,
        report,
        base_fingerprint=base.signature.fingerprint,
        actor=actor,
        tenant=tenant,
        tokenizer=tokenizer,
        certify=certify,
    )
    return added, report


def _prepared(
    registry: Registry, base: ServedBase, files: Mapping[str, Blob], terms: Terms
) -> tuple[Prepared, AdapterTokenizer | None, Report]:
    assert registry.preflight is not None
    _check_sizes(files)
    ready = registry.preflight.prepare(files[CONFIG_FILE], files[WEIGHTS_FILE])
    return ready, *_with_tokenizer(registry, base, files, ready.report, terms)


def _check_sizes(files: Mapping[str, Blob]) -> None:
    for file, limit in TOKENIZER_LIMITS.items():
        if file in files and files[file].size > limit:
            raise UploadTooLarge(f"{file} has {files[file].size:,} bytes; this server takes at most {limit:,}.")


def _with_tokenizer(
    registry: Registry, base: ServedBase, files: Mapping[str, Blob], report: Report, terms: Terms
) -> tuple[AdapterTokenizer | None, Report]:
    """What the version brings for text, and the report with what was found. The weights say how many rows there are."""
    paths = {file: registry.store.blob_path(files[file].sha256) for file in TOKENIZER_LIMITS if file in files}
    if not paths or report.summary is None:
        return None, report
    tokenizer, finding = check_tokenizer(paths, base, report.summary.vocab_size, terms)
    return tokenizer, Report([*report.findings, finding], report.summary)


def _copied(registry: Registry, path: Path) -> Blob:
    if not path.is_file():
        raise ValueError(f"{path} is missing. An adapter's folder has {CONFIG_FILE} and {WEIGHTS_FILE}.")
    with path.open("rb") as file:
        return registry.store.keep(file)
