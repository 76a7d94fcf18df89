"""in_terms_of: a refusal of the chat that a request became, in the request's own words."""

from collections.abc import Callable

from ...http.errors import ApiError


def in_terms_of(error: ApiError, said: Callable[[str], str]) -> ApiError:
    """`said`: what the request calls what a text speaks of."""
    return ApiError(
        error.status,
        said(error.message),
        param=None if error.param is None else said(error.param),
        code=error.code,
        type=error.type,
        headers=error.headers,
        extra=error.extra,
    )
