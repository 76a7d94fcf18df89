"""Output: the items of an answer as they come, and the events that tell of each step."""

import uuid
from typing import Any

from ...tool_calls.events import Arguments, Begun, Event, Words

Told = dict[str, Any]
"""An event, not yet numbered."""


class Output:
    """`items` are as far as the answer has come. One is open at most: a message or a call."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        """Of the text or the arguments of the open item."""
        self._is_open = False

    def push(self, part: Event, logprobs: list[dict[str, Any]]) -> list[Told]:
        """`logprobs`: of the tokens of words, in the chat's form."""
        match part:
            case Words():
                told = [] if self._is_in_message() else [*self.close("completed"), *self._open_message()]
                self._pieces.append(part.text)
                self.items[-1]["content"][0]["logprobs"] += logprobs
                return [*told, self._about("response.output_text.delta", delta=part.text, logprobs=logprobs)]
            case Begun():
                return [*self.close("completed"), *self._open_call(part.name)]
            case Arguments():
                self._pieces.append(part.text)
                return [self._about("response.function_call_arguments.delta", delta=part.text)]

    def end(self, status: str) -> list[Told]:
        """An answer without a word is an empty message."""
        told = [] if self.items else self._open_message()
        return [*told, *self.close(status)]

    def close(self, status: str) -> list[Told]:
        """The open item, if there is one, is complete or cut off."""
        if not self._is_open:
            return []
        item, text = self.items[-1], "".join(self._pieces)
        item["status"], self._pieces = status, []
        if item["type"] == "message":
            [part] = item["content"]
            part["text"] = text
            ended = self._about("response.output_text.done", text=text, logprobs=part["logprobs"])
            told = [ended, self._about("response.content_part.done", part=part)]
        else:
            item["arguments"] = text
            told = [self._about("response.function_call_arguments.done", name=item["name"], arguments=text)]
        self._is_open = False
        return [*told, self._item("response.output_item.done")]

    def _is_in_message(self) -> bool:
        return self._is_open and self.items[-1]["type"] == "message"

    def _open_message(self) -> list[Told]:
        told = self._open("msg", {"type": "message", "role": "assistant", "content": []})
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        begun = self._about("response.content_part.added", part={**part, "logprobs": []})
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
        place = {"content_index": 0} if item["type"] == "message" else {}
        return {"type": kind, "item_id": item["id"], "output_index": len(self.items) - 1, **place, **members}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
