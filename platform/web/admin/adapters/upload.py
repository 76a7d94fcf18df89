"""Uploading an adapter: the page, and the report on its files."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.adapters.routes import WHOLE
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.names import NAME_PATTERN, NAME_RULE
from loraplex.registry.registry import Registry
from loraplex.registry.report import Report

from ...access.caller import Caller
from ...endpoints.authentication import form_fields
from ...endpoints.dependencies import CallerOf, SettingsOf, StateOf
from ...http.errors import ApiError
from ...http.refusals import as_api_error
from ...management.registration import FIELDS, check_version, register_version
from ...management.told import added_fields
from ...sources.errors import SourceFailed, SourceMissing, SourceRefused
from ...sources.fetch import fetch_adapter, is_folder
from ...units import count_words
from ..page import PageRoute, page
from ..questions import last_day_of
from .placing import Placing, activation_of, placing_of

SECTION: Final = "/adapters"
MISSING_FILES: Final = "x-missing-files"
ACCEPTED: Final = 202
# Browsers read a pattern with the flag v, where a hyphen in a class must be escaped.
HTML_PATTERN: Final = NAME_PATTERN.replace("-]", r"\-]")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an adapter's files; `version` where they were registered, with what that means to callers in
    `message`. `model`: what to ask for to try it. `placing`: not registered yet, and it could move callers."""

    name: str
    report: Report
    error: ApiError | None = None
    version: int | None = None
    created: bool = False
    message: str = ""
    model: str = ""
    placing: Placing | None = None


router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/upload")
async def upload(request: Request, settings: SettingsOf, name: str = "") -> Response:
    limit = int(settings.max_adapter_bytes)
    return page(
        request,
        "upload.html",
        SECTION,
        name=name,
        max_bytes=limit,
        name_pattern=HTML_PATTERN,
        name_rule=NAME_RULE,
        tokenizers=settings.adapter_tokenizers,
        hub=settings.adapter_hub,
        folders=[str(folder) for folder in settings.adapter_folders],
    )


@router.post("/upload/fetch")
async def fetch(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """Bring an adapter from the hub or a folder of this machine into the store, and report on it."""
    fields = await form_fields(request)
    name, source = fields.get("name", ""), fields.get("source", "").strip()
    try:
        hold = state.uploads.hold(caller.tenant, caller.actor, stays=is_folder(source))
        with as_api_error(), _source_errors(source), hold as slot:
            state.registry.adapters.check_name(name)
            blobs = await fetch_adapter(source, state.settings, state.registry.store, slot)
            digests = {file: blob.sha256 for file, blob in blobs.items()}
            for sha256 in digests.values():
                await asyncio.to_thread(state.registry.uploads.note, sha256, caller.tenant)
            report = await check_version(state, caller, name, digests, chosen=False)
    except ApiError as error:
        return _report(request, Outcome(name, _report_of(error), error))
    placing = await asyncio.to_thread(placing_of, state, caller, name)
    return _report(request, Outcome(name, report, placing=placing), digests)


@router.post("/adapters/{name}/check")
async def check(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The report on an adapter's files as a fragment; nothing is registered.

    202 names in the header x-missing-files what has to be sent first: bytes that are already here need not come again.
    """
    digests = _digests(await form_fields(request))
    try:
        with as_api_error():
            missing = await asyncio.to_thread(_missing, state.registry, caller, name, digests)
            if missing:
                return Response(status_code=ACCEPTED, headers={MISSING_FILES: ",".join(missing)})
            report = await check_version(state, caller, name, digests, chosen=False)
    except ApiError as error:
        return _report(request, Outcome(name, _report_of(error), error))
    placing = await asyncio.to_thread(placing_of, state, caller, name)
    return _report(request, Outcome(name, report, placing=placing), digests)


@router.post("/adapters/{name}/versions")
async def register(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The report on an adapter's files as a fragment; when it has no failure, they are a version now, which answers
    whom the form says.

    202 as `check` answers it.
    """
    fields = await form_fields(request)
    digests = _digests(fields)
    try:
        with as_api_error():
            missing = await asyncio.to_thread(_missing, state.registry, caller, name, digests)
            if missing:
                return Response(status_code=ACCEPTED, headers={MISSING_FILES: ",".join(missing)})
            added, report = await register_version(state, caller, name, digests, False, activation_of(fields))
    except ApiError as error:
        return _report(request, Outcome(name, _report_of(error), error))
    day = await asyncio.to_thread(last_day_of, state.registry, caller, added.before)
    number, told = added.version.number, added_fields(added, day)
    model = name if told["share"] == WHOLE else f"{name}@{number}"
    outcome = Outcome(name, report, version=number, created=added.created, message=told["message"], model=model)
    return _report(request, outcome)


def _digests(fields: Mapping[str, str]) -> dict[str, str]:
    """File -> SHA-256, of those that every adapter has and those that were named."""
    needed = (CONFIG_FILE, WEIGHTS_FILE)
    return {file: fields.get(field, "") for file, field in FIELDS.items() if file in needed or fields.get(field)}


def _missing(registry: Registry, caller: Caller, name: str, digests: dict[str, str]) -> list[str]:
    registry.adapters.check_name(name)
    find = registry.uploads.find
    return [file for file, digest in digests.items() if find(digest, caller.tenant) is None]


@contextmanager
def _source_errors(source: str) -> Iterator[None]:
    try:
        yield
    except SourceMissing as error:
        raise ApiError(404, str(error) or f"There is no adapter at {source[:200]}.", code="not_found") from None
    except (SourceRefused, SourceFailed) as error:
        raise ApiError(400, str(error)) from None


def _report_of(error: ApiError) -> Report:
    return msgspec.convert(error.extra.get("report", {"findings": []}), Report)


def _report(request: Request, outcome: Outcome, digests: Mapping[str, str] | None = None) -> Response:
    """`digests`: what may be registered now if nothing failed."""
    report, error = outcome.report, outcome.error
    warnings = sum(finding.level == "warn" for finding in report.findings)
    return page(
        request,
        "adapters/_report.html",
        SECTION,
        name=outcome.name,
        version=outcome.version,
        created=outcome.created,
        message=outcome.message,
        model=outcome.model,
        placing=outcome.placing,
        ready=digests is not None and report.passed,
        fields={FIELDS[file]: digest for file, digest in (digests or {}).items()},
        failures=len(report.failures),
        warnings=count_words(warnings, "warning") if warnings else "",
        reason="" if error is None or report.failures else error.message,
        findings=report.findings,
    )
