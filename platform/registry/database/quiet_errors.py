"""hide_values: errors of PostgreSQL without the values that it quotes. They are logged, and values are tenants' own."""

from typing import Final

from psycopg import Error
from sqlalchemy.engine import ExceptionContext

QUOTING: Final = ("22", "P0")
"""Classes of SQLSTATE whose very message may quote: data that is none of its type, RAISE in a function."""
HIDDEN: Final = "hidden, because it may quote values"


def hide_values(context: ExceptionContext) -> None:
    """For SQLAlchemy's event `handle_error`: before anybody sees the error. SQLite quotes nothing."""
    cause, raised = context.original_exception, context.sqlalchemy_exception
    if isinstance(cause, Error):
        cause.args = (_without_values(cause),)
        if raised is not None:  # it has put its cause into words before this event
            raised.args = (f"({type(cause).__module__}.{type(cause).__name__}) {cause}",)


def _without_values(error: Error) -> str:
    """State and message in one line. DETAIL quotes, as `Key (tenant_id, name)=(…)`. So may context, hint and query."""
    if error.sqlstate is None:  # libpq's own words
        return " ".join(str(error).split())
    return f"{error.sqlstate}: {HIDDEN if error.sqlstate.startswith(QUOTING) else error.diag.message_primary}"
