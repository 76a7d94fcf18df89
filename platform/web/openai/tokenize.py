"""POST /tokenize and /detokenize, as vLLM has them."""

from typing import Any

from fastapi import APIRouter, Request

from ..auth import Caller
from ..dependencies import CallerOf, StateOf
from ..errors import invalid
from ..json_body import convert, read_json
from ..resolve import Served, find_served
from ..state import State
from .prompts import chat_prompt, text_prompt
from .schemas import Detokenize, TokenizeChat, TokenizeText

router = APIRouter(tags=["OpenAI"])


@router.post("/tokenize")
async def tokenize(request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Token ids of a `prompt`, or of `messages` through the chat template."""
    body = await read_json(request, state.settings.body_timeout)
    fields: TokenizeText | TokenizeChat
    wording = (await _find(body, state, caller)).wording
    if "messages" in body:
        fields = convert({"model": state.base.name, **body}, TokenizeChat)
        tokens = await chat_prompt(state, wording, fields)
    else:
        fields = convert(body, TokenizeText)
        tokens = await text_prompt(state, wording, fields.prompt, fields.add_special_tokens)
    strings = [wording.token_text.of(token)[0] for token in tokens] if fields.return_token_strs else None
    return {"count": len(tokens), "max_model_len": state.max_model_len, "tokens": tokens, "token_strs": strings}


@router.post("/detokenize")
async def detokenize(request: Request, state: StateOf, caller: CallerOf) -> dict[str, str]:
    """The text of token ids."""
    body = await read_json(request, state.settings.body_timeout)
    served = await _find(body, state, caller)
    fields = convert(body, Detokenize)
    _check_ids(fields.tokens, served.vocab_size)
    return {"prompt": served.wording.tokenizer.decode(fields.tokens, skip_special_tokens=False)}


async def _find(body: dict[str, Any], state: State, caller: Caller) -> Served:
    """Most models share the base's tokenizer, so the name may be left out; a wrong one is refused as everywhere."""
    given = body.get("model")
    name = given if isinstance(given, str) else state.base.name
    return await find_served(state, name, None, caller.tenant, caller.only)


def _check_ids(tokens: list[int], vocabulary: int) -> None:
    wrong = next((token for token in tokens if token >= vocabulary), None)
    if wrong is not None:
        raise invalid(f"tokens has token id {wrong}, outside the vocabulary of {vocabulary}.", "tokens")
