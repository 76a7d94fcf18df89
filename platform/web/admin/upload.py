"""Uploading an adapter: the page, and the report on its files."""

import asyncio
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.registry.names import NAME_PATTERN, NAME_RULE
from loraplex.registry.report import Report

from ..api.refusals import in_words
from ..auth import Caller, form_fields
from ..dependencies import CallerOf, StateOf
from ..errors import ApiError
from ..registration import FIELDS, register_version
from ..state import State
from .page import PageRoute, page

SECTION: Final = "/adapters"
MISSING_FILES: Final = "x-missing-files"
ACCEPTED: Final = 202
# Browsers read a pattern with the flag v, where a hyphen in a class must be escaped.
HTML_PATTERN: Final = NAME_PATTERN.replace("-]", r"\-]")

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/upload")
async def upload(request: Request, state: StateOf, name: str = "") -> Response:
    limit = int(state.settings.max_adapter_bytes)
    return page(
        request,
        "upload.html",
        SECTION,
        name=name,
        max_bytes=limit,
        name_pattern=HTML_PATTERN,
        name_rule=NAME_RULE,
        tokenizers=state.settings.adapter_tokenizers,
    )


@router.post("/adapters/{name}/versions")
async def register(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The report on an adapter's files as a fragment; when it has no failure, the version is served from now on.

    202 names in the header x-missing-files what has to be sent first: bytes that are already here need not come again.
    """
    fields = await form_fields(request)
    needed = (CONFIG_FILE, WEIGHTS_FILE)
    digests = {file: fields.get(field, "") for file, field in FIELDS.items() if file in needed or fields.get(field)}
    try:
        with in_words():
            missing = await asyncio.to_thread(_missing, state, caller, name, digests)
            if missing:
                return Response(status_code=ACCEPTED, headers={MISSING_FILES: ",".join(missing)})
            added, report = await register_version(state, caller, name, digests, chosen=False)
    except ApiError as error:
        return _report(request, name, _report_of(error), error=error)
    return _report(request, name, report, version=added.version.number, created=added.created)


def _missing(state: State, caller: Caller, name: str, digests: dict[str, str]) -> list[str]:
    state.registry.adapters.check_name(name)
    find = state.registry.uploads.find
    return [file for file, digest in digests.items() if find(digest, caller.tenant) is None]


def _report_of(error: ApiError) -> Report:
    return msgspec.convert(error.extra.get("report", {"findings": []}), Report)


def _report(
    request: Request,
    name: str,
    report: Report,
    version: int | None = None,
    created: bool = False,
    error: ApiError | None = None,
) -> Response:
    return page(
        request,
        "adapters/_report.html",
        SECTION,
        name=name,
        version=version,
        created=created,
        failures=len(report.failures),
        reason="" if error is None or report.failures else error.message,
        findings=report.findings,
    )
