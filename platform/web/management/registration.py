"""Making a version of an adapter's files; shared by the admin API, the dashboard and the demo."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loraplex.registry.adapters.activation import Activation
from loraplex.registry.adapters.adapters import AddedVersion
from loraplex.registry.base import ServedBase
from loraplex.registry.certificates.certificates import CoverageOf
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.errors import UploadMissing, UploadTooLarge
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.files.incoming import Blob
from loraplex.registry.files.preflight import Prepared
from loraplex.registry.registry import Registry
from loraplex.registry.report import Report

from ..access.caller import Caller
from ..adapter_tokenizers.check import Terms, check_tokenizer
from ..adapter_tokenizers.files import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, TOKENIZER_LIMITS

if TYPE_CHECKING:
    from ..state import State

FIELDS: Final = {
    CONFIG_FILE: "config_sha256",
    WEIGHTS_FILE: "weights_sha256",
    TOKENIZER_FILE: "tokenizer_sha256",
    SETTINGS_FILE: "tokenizer_config_sha256",
    TEMPLATE_FILE: "chat_template_sha256",
}
"""File of an adapter -> what its SHA-256 is called in requests. Those of the tokenizer may be missing."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What would become a version: the files as they would be served, and all that was found."""

    ready: Prepared
    tokenizer: AdapterTokenizer | None
    report: Report


async def register_version(
    state: "State",
    caller: Caller,
    name: str,
    digests: Mapping[str, str],
    chosen: bool,
    activation: Activation | None = None,
) -> tuple[AddedVersion, Report]:
    """Check the received files, make a version of them, and bring the engine to it. Raises RegistryError.

    `digests`: file -> SHA-256. `chosen`: whether the tokenizer's files were sent on purpose or lay beside the adapter.
    `activation`: whom it answers, as Adapters.add_version takes it.
    """
    checked = await _check(state, caller, name, digests, chosen)
    certify = state.served_path.digest if state.settings.certify_uploads else None
    add = partial(_add, state.registry, state.base, name, checked, certify, caller.actor, caller.tenant, activation)
    added = await asyncio.to_thread(add)
    await state.reconciler.reconcile()
    return added, checked.report


async def check_version(state: "State", caller: Caller, name: str, digests: Mapping[str, str], chosen: bool) -> Report:
    """What register_version would find in the received files; nothing is changed. Raises RegistryError."""
    return (await _check(state, caller, name, digests, chosen)).report


def uploaded_file(state: "State", caller: Caller, sha256: str) -> Blob:
    """The file with this SHA-256 that the caller's tenant has sent. Raises UploadMismatch (the SHA-256 is none),
    UploadMissing."""
    blob = state.registry.uploads.find(sha256, caller.tenant)
    if blob is None:
        raise UploadMissing(f"The server has no file with SHA-256 {sha256}. Upload it with PUT first.")
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
    beside_it = [file for file in TOKENIZER_LIMITS if (folder / file).is_file()]
    files = {file: _copied(registry, folder / file) for file in (CONFIG_FILE, WEIGHTS_FILE, *beside_it)}
    checked = _checked(registry, base, files, Terms(tokenizers, chosen=False))
    return _add(registry, base, name, checked, certify, actor), checked.report


async def _check(state: "State", caller: Caller, name: str, digests: Mapping[str, str], chosen: bool) -> Checked:
    """The files, and where they are good, what the engine makes of them."""
    checked = await asyncio.to_thread(_check_files, state, caller, name, digests, chosen)
    if not checked.report.passed or not state.settings.preflight_logits:
        return checked
    finding = await state.effect_check.judge(checked.ready, caller.tenant)
    return replace(checked, report=checked.report.with_finding(finding))


def _check_files(state: "State", caller: Caller, name: str, digests: Mapping[str, str], chosen: bool) -> Checked:
    state.registry.adapters.check_name(name)
    files = {file: uploaded_file(state, caller, digest) for file, digest in digests.items()}
    return _checked(state.registry, state.base, files, Terms(state.settings.adapter_tokenizers, chosen))


def _checked(registry: Registry, base: ServedBase, files: Mapping[str, Blob], terms: Terms) -> Checked:
    assert registry.preflight is not None
    _check_sizes(files)
    ready = registry.preflight.prepare(files[CONFIG_FILE], files[WEIGHTS_FILE])
    return Checked(ready, *_with_tokenizer(registry, base, files, ready.report, terms))


def _add(
    registry: Registry,
    base: ServedBase,
    name: str,
    checked: Checked,
    certify: CoverageOf | None,
    actor: str,
    tenant: str = DEFAULT_TENANT,
    activation: Activation | None = None,
) -> AddedVersion:
    return registry.adapters.add_version(
        name,
        checked.ready.config,
        checked.ready.weights,
        checked.report,
        base_fingerprint=base.signature.fingerprint,
        actor=actor,
        tenant=tenant,
        tokenizer=checked.tokenizer,
        certify=certify,
        activation=activation,
    )


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
    return tokenizer, report.with_finding(finding)


def _copied(registry: Registry, path: Path) -> Blob:
    if not path.is_file():
        raise ValueError(f"{path} is missing. An adapter's folder has {CONFIG_FILE} and {WEIGHTS_FILE}.")
    with path.open("rb") as file:
        return registry.store.keep(file)
