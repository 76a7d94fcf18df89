"""POST /tokenize and /detokenize, GET /tokenizer_info, as vLLM has them."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from loraplex.engine.text.tokenizer import NAMED_TOKENS

from ..access.caller import Caller
from ..endpoints.dependencies import CallerOf, InferenceOf
from ..http.errors import ApiError, invalid
from ..http.json_body import convert, read_json
from ..http.off_loop import off_loop
from ..inference.inference import Inference
from ..inference.resolve import Served, find_served
from .fields import check_fields, ignored_header
from .prompts import chat_prompt, text_prompt
from .schemas import Detokenize, TokenizeChat, TokenizeText
from .translated.functions import explain_refusal, with_tools

router = APIRouter(tags=["OpenAI"])


@router.post("/tokenize", response_model=dict[str, Any])
async def tokenize(request: Request, inference: InferenceOf, caller: CallerOf) -> Response:
    """Token ids of a `prompt`, or of `messages` through the chat template."""
    body = await read_json(request, inference.settings.body_timeout)
    max_chars = inference.settings.max_prompt_chars
    schema = TokenizeChat if "messages" in body else TokenizeText
    ignored = check_fields(body, schema.__struct_fields__)
    fields: TokenizeText | TokenizeChat
    if "messages" in body:
        fields = with_tools(convert({"model": inference.settings.base_name, **body}, TokenizeChat))
        text_processor = (await _find(fields, inference, caller)).text_processor
        try:
            tokens = await chat_prompt(text_processor, fields, max_chars)
        except ApiError as error:
            raise explain_refusal(fields, error) from error
    else:
        fields = convert(body, TokenizeText)
        text_processor = (await _find(fields, inference, caller)).text_processor
        tokens = await text_prompt(text_processor, fields.prompt, fields.add_special_tokens, max_chars)

    def answer() -> bytes:
        strings = [text_processor.token_text.of(token)[0] for token in tokens] if fields.return_token_strs else None
        count, longest = len(tokens), inference.max_model_len
        said = {"count": count, "max_model_len": longest, "tokens": tokens, "token_strs": strings}
        return msgspec.json.encode(said)

    answered = await off_loop(answer, len(tokens))
    return Response(answered, media_type="application/json", headers=ignored_header(ignored))


@router.post("/detokenize")
async def detokenize(request: Request, inference: InferenceOf, caller: CallerOf) -> dict[str, str]:
    """The text of token ids."""
    body = await read_json(request, inference.settings.body_timeout)
    fields = convert(body, Detokenize)
    served = await _find(fields, inference, caller)
    _check_ids(fields.tokens, served.vocab_size)
    tokenizer, tokens = served.text_processor.tokenizer, fields.tokens
    return {"prompt": await off_loop(lambda: tokenizer.decode(tokens, skip_special_tokens=False), len(tokens))}


@router.get("/tokenizer_info")
async def tokenizer_info(inference: InferenceOf, caller: CallerOf, model: str = "") -> dict[str, Any]:
    """What clients that tokenize by themselves ask for; of the base, or of what `model` names."""
    name = model or inference.settings.base_name
    text_processor = (await find_served(inference, caller, name)).text_processor
    template = text_processor.template
    return {
        **dict.fromkeys(NAMED_TOKENS),
        **text_processor.tokenizer.named_tokens,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": None if template is None else template.source,
        "model_max_length": inference.max_model_len,
        "vocab_size": text_processor.tokenizer.vocab_size,
    }


async def _find(fields: TokenizeText | TokenizeChat | Detokenize, inference: Inference, caller: Caller) -> Served:
    """What would answer this caller. Most models share the base's tokenizer, so the name may be left out; a wrong one
    is refused as everywhere."""
    name, asker = fields.model or inference.settings.base_name, fields.asker(caller.actor)
    return await find_served(inference, caller, name, fields.adapter_scales(), asker)


def _check_ids(tokens: list[int], vocabulary: int) -> None:
    wrong = next((token for token in tokens if token >= vocabulary), None)
    if wrong is not None:
        raise invalid(f"tokens has token id {wrong}, outside the vocabulary of {vocabulary}.", "tokens")
