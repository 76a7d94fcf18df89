"""From a request for vectors to token ids, and to what the engine is asked for."""

from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

from loraplex.engine.pooling.vectors import MOST_NUMBERS
from loraplex.engine.pooling.wanted import ModelPooling, Pooling
from loraplex.engine.protocol import EngineInfo
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.text.tokenizer import TokenPair

from ..adapters.engine_door import require_ready
from ..http.errors import invalid
from ..http.json_body import convert, read_json
from ..inference.inference import Inference
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec
from ..openai.fields import check_fields, ignored_header, note_model
from ..openai.prompts import listed_prompts
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .fields import check_members
from .schemas import AS_LONG_AS_POSSIBLE, EmbeddingsRequest, InputFields, PooledFields

Fields = TypeVar("Fields", bound=PooledFields)


async def read_pooled_fields(
    request: Request, inference: Inference, schema: type[Fields], default_model: bool = True
) -> tuple[Fields, dict[str, str]]:
    """The body as `schema`, and response headers that name what was ignored. `default_model`: the base, where none is
    named."""
    body = await read_json(request, inference.settings.body_timeout)
    if issubclass(schema, EmbeddingsRequest):
        body = check_members(body, schema)
    ignored = check_fields(body, schema.__struct_fields__)
    if default_model:
        body = {"model": inference.settings.base_name, **body}
    fields = convert(body, schema)
    note_model(request, fields.model)
    if fields.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens must be at least 1, or -1.", "truncate_prompt_tokens")
    return fields, ignored_header(ignored)


def facts_of(inference: Inference) -> EngineInfo:
    """What the engine is. Raises ApiError 503 while it is away."""
    require_ready(inference.engine)
    info = inference.engine.info
    assert info is not None, "a ready engine has said what it is"
    return info


def embeddings_of(info: EngineInfo) -> ModelPooling:
    """How the model makes embeddings. Raises ApiError where it makes none."""
    if info.pooling is None:
        raise invalid(f"This model makes no embeddings: {info.pooling_refusal}.", "model", "unsupported")
    return info.pooling


def embedding(
    model: ModelPooling, dimensions: int | None = None, normalize: bool | None = None, by_token: bool = False
) -> Pooling:
    try:
        return model.pooling(dimensions, normalize, by_token)
    except ValueError as error:
        raise invalid(f"{error}.", "dimensions") from None


async def input_prompts(
    text_processor: TextProcessor, fields: InputFields, settings: Settings, before: str = ""
) -> list[list[int]]:
    """`before`: put before each text."""
    most, special, given = settings.max_inputs, fields.add_special_tokens, fields.input
    if before:
        given = before + given if isinstance(given, str) else [_behind(before, entry) for entry in given]
    return await listed_prompts(text_processor, given, "input", most, settings, special)


def _behind(before: str, entry: str | list[int] | int) -> str | list[int] | int:
    return before + entry if isinstance(entry, str) else entry


def most_tokens(fields: PooledFields, info: EngineInfo) -> int | None:
    """Of a prompt, where longer ones are to be cut."""
    most = fields.truncate_prompt_tokens
    return info.max_model_len if most == AS_LONG_AS_POSSIBLE else most


def check_numbers(prompts: Sequence[Sequence[int]], width: int) -> None:
    """Raises ApiError where the vectors of all tokens are more than one answer has. `width`: numbers of each."""
    numbers = sum(map(len, prompts)) * width
    if numbers > MOST_NUMBERS:
        words = f"All tokens of input have {numbers:,} numbers together; one request gets at most {MOST_NUMBERS:,}."
        raise invalid(f"{words} Send fewer or shorter inputs.", "input")


def pooled_spec(
    fields: PooledFields, served: Served, prompts: list[list[int]], pooling: Pooling, field: str, info: EngineInfo
) -> GenerationSpec:
    """`field`: of the request, that holds the prompts."""
    most, tokenizer = most_tokens(fields, info), served.text_processor.tokenizer
    if most is not None and info.keeps_beginning:
        prompts = [prompt if isinstance(prompt, TokenPair) else tokenizer.cut(prompt, most) for prompt in prompts]
    elif most is not None:
        prompts = [prompt[-most:] for prompt in prompts]
    return GenerationSpec(
        served=served,
        prompts=prompts,
        params=SamplingParams(),
        prompt_field=field,
        priority=fields.priority,
        cache_salt=fields.cache_salt or "",
        pooling=pooling,
    )
