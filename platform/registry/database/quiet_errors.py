"""hide_values: errors of PostgreSQL without the values that it quotes. They are logged, and values are tenants' own."""

from typing import Any, Final

from sqlalchemy.engine import ExceptionContext

KEPT: Final = frozenset("SVCMPpstcdnFLR")
"""Fields of an error: severity, SQLSTATE, message, positions, names (schema, table, column, type, constraint) and where
in PostgreSQL. Left out are those that quote: `DETAIL: Key (tenant_id, name)=(…)`, context, hint, inner query."""
QUOTING: Final = ("22", "P0")
"""Classes of SQLSTATE whose very message may quote: data that is none of its type, RAISE in a function."""
HIDDEN: Final = "hidden, because it may quote values"


def hide_values(context: ExceptionContext) -> None:
    """For SQLAlchemy's event `handle_error`: before anybody sees the error. SQLite quotes nothing."""
    cause, raised = context.original_exception, context.sqlalchemy_exception
    # The driver makes one of its errors out of another, which a trace shows too.
    hidden = [_hide(error) for error in (cause, cause.__cause__, cause.__context__) if error is not None]
    if any(hidden) and raised is not None:
        # It has put its cause into words before this event.
        raised.args = (f"({type(cause).__module__}.{type(cause).__name__}) {cause}",)


def _hide(error: BaseException) -> bool:
    told = error.args[0] if error.args else None
    if not isinstance(told, dict):
        return False
    error.args = (_without_values(told),)
    return True


def _without_values(told: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in told.items() if name in KEPT}
    return kept | {"M": HIDDEN} if str(told.get("C", "")).startswith(QUOTING) else kept
