"""Blocks: the blocks of an answer as they come, and the events that tell of each step."""

import hashlib
import uuid
from typing import Any

import msgspec

from ..tool_calls.events import Arguments, Begun, Event, Reasoning, Words

Told = dict[str, Any]
"""An event."""


class Blocks:
    """`blocks` are as far as the answer has come. One is open at most: a thinking, a text or a call."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        """Of the open one."""
        self._is_open = False

    def push(self, part: Event) -> list[Told]:
        match part:
            case Reasoning():
                return self._say("thinking", part.text, "thinking_delta")
            case Words():
                return self._say("text", part.text, "text_delta")
            case Begun():
                call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": part.name, "input": {}}
                return [*self.close(), self._open(call)]
            case Arguments():
                self._pieces.append(part.text)
                return [self._delta({"type": "input_json_delta", "partial_json": part.text})]

    def close(self) -> list[Told]:
        """The open block, if there is one, is complete or cut off."""
        if not self._is_open:
            return []
        block, text, told = self.blocks[-1], "".join(self._pieces), list[Told]()
        self._pieces, self._is_open = [], False
        if block["type"] == "tool_use":
            block["input"] = _object(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            block["signature"] = _signature(text)
            told = [self._delta({"type": "signature_delta", "signature": block["signature"]})]
        return [*told, {"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _say(self, kind: str, text: str, delta: str) -> list[Told]:
        """More of the text of such a block. Anthropic's API refuses empty ones, so none is begun."""
        if not text:
            return []
        is_in_it = self._is_open and self.blocks[-1]["type"] == kind
        empty = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        told = [] if is_in_it else [*self.close(), self._open(empty)]
        self._pieces.append(text)
        return [*told, self._delta({"type": delta, kind: text})]

    def _open(self, block: dict[str, Any]) -> Told:
        self.blocks.append(block)
        self._is_open = True
        return {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> Told:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _object(text: str) -> dict[str, Any]:
    """Empty where a limit or a stop sequence has cut it: the stop reason says so."""
    try:
        decoded = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        decoded = {}
    return decoded if isinstance(decoded, dict) else {}


def _signature(text: str) -> str:
    """Clients send thinking back only with one; it proves nothing here."""
    return hashlib.sha256(text.encode()).hexdigest()
