"""The registry's and the engine's refusals as answers to the client."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from loraplex.engine.ipc.client import AdapterError, EngineUnavailable
from loraplex.registry.errors import PreflightRefused, RegistryError

from .errors import ApiError, from_engine, with_names

STATUS: Final = {
    "response_not_found": 404,
    "adapter_not_found": 404,
    "alias_not_found": 404,
    "file_not_found": 404,
    "batch_not_found": 404,
    "invalid_api_key": 404,
    "tenant_not_found": 404,
    "user_not_found": 404,
    "last_admin": 409,
    "name_taken": 409,
    "promotion_refused": 409,
    "version_in_use": 409,
    "undo_refused": 409,
    "route_changed": 412,
    "upload_busy": 409,
    "upload_too_large": 413,
    "file_in_use": 409,
    "batch_ended": 409,
    "files_full": 413,
    "batches_waiting": 429,
    "certificates_waiting": 429,
    "storage_full": 507,
}
PARAM: Final = {
    "invalid_name": "name",
    "adapter_not_found": "name",
    "alias_not_found": "alias",
    "file_not_found": "file_id",
    "file_in_use": "file_id",
    "batch_not_found": "batch_id",
    "batch_ended": "batch_id",
    "name_taken": "name",
    "weak_secret": "password",
    "invalid_prompts": "prompts",
    "invalid_route": "weights",
    "promotion_refused": "version",
    "upload_mismatch": "x-content-sha256",
    "upload_empty": "content-length",
}


@contextmanager
def as_api_error(param: str | None = None, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn what registry and engine raise into an ApiError; a failed preflight brings its report along.

    `param` is the field that is looked at, where that is not what this kind of refusal is usually about. `names` are
    what the caller calls an adapter, by the digest that the engine calls it.
    """
    try:
        yield
    except RegistryError as error:
        extra = {"report": msgspec.to_builtins(error.report)} if isinstance(error, PreflightRefused) else {}
        status = STATUS.get(error.code, 400)
        param = param or error.field or PARAM.get(error.code)
        raise ApiError(status, str(error), param=param, code=error.code, extra=extra) from None
    except AdapterError as error:
        message = f"The engine refused: {with_names(str(error), names or {})}"
        raise ApiError(400, message, param="name", code="adapter_error") from None
    except EngineUnavailable as error:
        raise from_engine(error) from None
