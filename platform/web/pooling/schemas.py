"""Bodies that ask for vectors, OpenAI's and vLLM's. Null members are dropped before."""

from typing import Annotated, Literal

from msgspec import Meta

from ..openai.schemas import Adapted, Name, TokenId

Input = str | list[str | list[TokenId] | TokenId]
"""A text, token ids, or a list of either."""
Dimensions = Annotated[int, Meta(ge=1, lt=2**31)]
Truncation = Annotated[int, Meta(ge=-1, lt=2**31)]
AS_LONG_AS_POSSIBLE = -1


class PooledFields(Adapted, kw_only=True):
    """What all requests for vectors share."""

    model: Name
    stream: Literal[False] = False
    truncate_prompt_tokens: Truncation | None = None
    """Only so many last tokens of each input are used; -1: as many as the model takes."""
    add_special_tokens: bool = True
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class EmbeddingsRequest(PooledFields, kw_only=True):
    input: Input
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    """vLLM's: whether vectors are scaled to length 1; else as the model says."""
    embed_dtype: Literal["float32"] = "float32"
    """vLLM's, of base64; `endianness` too."""
    endianness: Literal["native", "little"] = "native"


class PoolingRequest(EmbeddingsRequest, kw_only=True):
    task: Literal["embed"] = "embed"
