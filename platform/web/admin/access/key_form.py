"""The form of a key: what it may do, with which models, until when and how much."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from loraplex.registry.access.keys import ApiKey
from loraplex.registry.access.scopes import INFERENCE, SCOPES
from loraplex.registry.names import MAX_LABEL, is_label

from ..forms import Form, quota_values

SCOPE_WORDS: Final = {
    "inference": "use models",
    "adapters": "upload and change adapters",
    "admin": "everything in the tenant, including keys and users",
}
ON_A_DAY: Final = "day"
DURATIONS: Final = {"": "Never", "7": "In 7 days", "30": "In 30 days", "90": "In 90 days", "365": "In a year"}
CHOICES: Final = DURATIONS | {ON_A_DAY: "On a date…"}


def new_key_form() -> Form:
    return Form({f"scope_{INFERENCE}": "on", "expires": "90"})


def form_of(key: ApiKey) -> Form:
    """What is there already, to be changed."""
    values = quota_values(key.quota) | {"adapters": ", ".join(sorted(key.adapters or ()))}
    if key.expires_at is not None:
        values |= {"expires": ON_A_DAY, "expires_day": key.expires_at.date().isoformat()}
    return Form(values)


def read_label(form: Form) -> str:
    name = form.text("name")
    if not is_label(name):
        form.errors["name"] = f"Enter a label of 1 to {MAX_LABEL} printable characters."
    return name


def read_scopes(form: Form) -> Sequence[str]:
    found = [scope for scope in SCOPES if form.text(f"scope_{scope}")]
    if not found:
        form.errors["scopes"] = "Choose at least one permission."
    return found


def read_adapters(form: Form) -> Sequence[str] | None:
    """Names with commas or line ends between; None, all, where nothing was typed."""
    parts = [name.strip() for name in form.text("adapters").replace("\n", ",").split(",")]
    names = [name for name in parts if name]
    wrong = next((name for name in names if not is_label(name)), None)
    if wrong is not None:
        form.errors["adapters"] = f"{wrong[:80]!a} is not a valid model name. Separate names with commas."
    return names or None


def read_expiry(form: Form, now: datetime) -> datetime | None:
    """A day ends the key at 00:00 UTC."""
    choice = form.text("expires")
    if choice == "":
        return None
    if choice != ON_A_DAY:
        if choice not in DURATIONS:
            form.errors["expires"] = "Choose an expiry or a date."
            return None
        return now + timedelta(days=int(choice))
    try:
        moment = datetime.combine(date.fromisoformat(form.text("expires_day")), time(), UTC)
    except ValueError:
        form.errors["expires"] = "Enter a date, such as 2027-01-31."
        return None
    if moment <= now:
        form.errors["expires"] = "This date is not in the future. Choose a later one, or revoke the key."
    return moment
