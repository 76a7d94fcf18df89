"""A change of an alias, and what the API answers of it."""

from ..admin_api import AdminApi, segment
from ..output import Fields
from .versions import adapter_path


def changed(api: AdminApi, name: str, alias: str, method: str, ending: str, body: object) -> Fields:
    """The route after it, with whom it moves. `ending`: what follows the alias in the path."""
    answer = api.ask(method, alias_path(name, alias) + ending, body)
    return {"adapter": name, **answer["routes"][alias], "moves": answer["moves"], "message": answer["message"]}


def alias_path(name: str, alias: str) -> str:
    return f"{adapter_path(name)}/aliases/{segment(alias)}"
