"""What a chat acts on or refuses is refused, or known, by the APIs over chats: none of it is passed over in silence."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loraplex.web.anthropic.fields import check_members as check_message
from loraplex.web.anthropic.schemas import MessagesRequest
from loraplex.web.http.errors import ApiError
from loraplex.web.openai.fields import HARMLESS, NEUTRAL, REFUSED
from loraplex.web.openai.responses.fields import check_members as check_response
from loraplex.web.openai.responses.schemas import ResponsesRequest
from loraplex.web.openai.schemas import ChatRequest

from ..tools import HELLO

KNOWN: dict[str, tuple[str, ...]] = {
    "/v1/messages": MessagesRequest.__struct_fields__,
    "/v1/responses": ResponsesRequest.__struct_fields__,
}
CHECKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "/v1/messages": lambda body: check_message(body, KNOWN["/v1/messages"]),
    "/v1/responses": check_response,
}
PROMPT: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/v1/responses": {"input": "Hello"},
}
DEFAULTS = {
    "use_beam_search": False,
    "length_penalty": 1,
    "early_stopping": False,
    "best_of": 1,
    "n": 1,
    "add_special_tokens": False,
    "separate_reasoning": True,
    "include_reasoning": True,
    "continue_final_message": False,
}


def refused(path: str, body: dict[str, Any]) -> str | None:
    """The field at fault."""
    try:
        CHECKS[path](body)
    except ApiError as error:
        return error.param
    return None


@pytest.mark.parametrize("path", KNOWN)
def test_every_field_of_a_chat_is_known_or_refused(path: str) -> None:
    names = {*ChatRequest.__struct_fields__, *NEUTRAL, *REFUSED} - {*KNOWN[path], *HARMLESS, "reasoning"}
    assert {name for name in names if refused(path, {name: "strange"}) != name} == set()


@pytest.mark.parametrize("path", KNOWN)
async def test_defaults_of_a_chat_pass(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"model": "tiny", **PROMPT[path], **DEFAULTS})
    assert answer.status_code == 200, answer.text
    assert "x-loraplex-ignored-fields" not in answer.headers
