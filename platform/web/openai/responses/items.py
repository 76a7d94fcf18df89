"""whole_items: the items of an input as the API lists them, each with its type, an id and a status."""

from typing import Any, Final

from .output import new_id

PREFIXES: Final = {"message": "msg", "reasoning": "rs"}
CALL_PREFIX: Final = "fc"


def whole_items(sent: str | list[Any]) -> list[dict[str, Any]]:
    """`sent`: an input that was taken."""
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    return [_whole(item) for item in sent]


def _whole(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    known = {"id": item.get("id") or new_id(PREFIXES.get(kind, CALL_PREFIX)), "type": kind}
    whole = {**item, **known, "status": item.get("status") or "completed"}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        whole["content"] = [_part(item.get("role"), content)]
    return whole


def _part(role: str | None, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
