"""Output: the items of an answer as they come, and the events that tell of each step."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

from ...tool_calls.events import Arguments, Begun, Event, Reasoning, Words

Told = dict[str, Any]
"""An event, not yet numbered."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """Of an item: `part`: what its text is called; `members` are the item's other ones, `beside` those of the part."""

    prefix: str
    part: str
    members: tuple[tuple[str, Any], ...]
    beside: tuple[str, ...] = ()
    """Lists, empty at first."""


TEXTS: Final = {
    "message": TextKind("msg", "output_text", (("role", "assistant"),), ("annotations", "logprobs")),
    "reasoning": TextKind("rs", "reasoning_text", (("summary", []),)),
}


class Output:
    """`items` are as far as the answer has come. One is open at most: a reasoning, a message or a call."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        """Of the text or the arguments of the open item."""
        self._is_open = False

    def push(self, part: Event, logprobs: list[dict[str, Any]]) -> list[Told]:
        """`logprobs`: of the tokens of words, in the chat's form."""
        match part:
            case Reasoning():
                return self._say("reasoning", part.text)
            case Words():
                told = self._say("message", part.text, logprobs=logprobs)
                self.items[-1]["content"][0]["logprobs"] += logprobs
                return told
            case Begun():
                return [*self.close("completed"), *self._open_call(part.name)]
            case Arguments():
                self._pieces.append(part.text)
                return [self._about("response.function_call_arguments.delta", delta=part.text)]

    def end(self, status: str) -> list[Told]:
        """An answer without a word or a call has an empty message."""
        told = list[Told]()
        if all(item["type"] == "reasoning" for item in self.items):
            told = [*self.close(status), *self._open_text("message")]
        return [*told, *self.close(status)]

    def close(self, status: str) -> list[Told]:
        """The open item, if there is one, is complete or cut off."""
        if not self._is_open:
            return []
        item, text = self.items[-1], "".join(self._pieces)
        item["status"], self._pieces, kind = status, [], TEXTS.get(item["type"])
        if kind is None:
            item["arguments"] = text
            told = [self._about("response.function_call_arguments.done", name=item["name"], arguments=text)]
        else:
            [part] = item["content"]
            part["text"] = text
            logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            ended = self._about(f"response.{kind.part}.done", text=text, **logprobs)
            told = [ended, self._about("response.content_part.done", part=part)]
        self._is_open = False
        return [*told, self._item("response.output_item.done")]

    def _say(self, kind: str, text: str, **members: Any) -> list[Told]:
        """More of the text of such an item."""
        is_in_it = self._is_open and self.items[-1]["type"] == kind
        told = [] if is_in_it else [*self.close("completed"), *self._open_text(kind)]
        self._pieces.append(text)
        return [*told, self._about(f"response.{TEXTS[kind].part}.delta", delta=text, **members)]

    def _open_text(self, kind: str) -> list[Told]:
        of = TEXTS[kind]
        told = self._open(of.prefix, {"type": kind, **dict(of.members), "content": []})
        empty, part = ({"type": of.part, "text": "", **{name: [] for name in of.beside}} for _ in range(2))
        begun = self._about("response.content_part.added", part=empty)
        self.items[-1]["content"] = [part]
        return [told, begun]

    def _open_call(self, name: str) -> list[Told]:
        call = {"type": "function_call", "call_id": new_id("call"), "name": name, "arguments": ""}
        return [self._open("fc", call)]

    def _open(self, prefix: str, item: dict[str, Any]) -> Told:
        self.items.append({"id": new_id(prefix), "status": "in_progress", **item})
        self._is_open = True
        return self._item("response.output_item.added")

    def _item(self, kind: str) -> Told:
        return {"type": kind, "output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _about(self, kind: str, **members: Any) -> Told:
        item = self.items[-1]
        place = {"content_index": 0} if item["type"] in TEXTS else {}
        return {"type": kind, "item_id": item["id"], "output_index": len(self.items) - 1, **place, **members}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
