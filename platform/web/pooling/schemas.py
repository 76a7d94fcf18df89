"""Bodies that ask for vectors, OpenAI's and vLLM's. Null members are dropped before."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..openai.schemas import Adapted, Name, TokenId

Input = str | list[str | list[TokenId] | TokenId]
"""A text, token ids, or a list of either."""
Texts = str | list[str]
Dimensions = Annotated[int, Meta(ge=1, lt=2**31)]
Truncation = Annotated[int, Meta(ge=-1, lt=2**31)]
AS_LONG_AS_POSSIBLE = -1


class PooledFields(Adapted, kw_only=True):
    """What all requests for vectors share."""

    model: Name
    stream: Literal[False] = False
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    truncate_prompt_tokens: Truncation | None = None
    """Only so many tokens of each prompt are used, an encoder's first ones, else the last; -1: as many as the model
    takes."""


class InputFields(PooledFields, kw_only=True):
    input: Input
    add_special_tokens: bool = True


class EmbeddingsRequest(InputFields, kw_only=True):
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    """vLLM's: whether vectors are scaled to length 1; else as the model says."""
    embed_dtype: Literal["float32"] = "float32"
    """vLLM's, of base64; `endianness` too."""
    endianness: Literal["native", "little"] = "native"


class PoolingRequest(EmbeddingsRequest, kw_only=True):
    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    """None: what the base was made for."""
    use_activation: bool | None = None
    """Of a classification: false gives the head's scores instead of probabilities. Of embeddings: vLLM's new name of
    normalize."""


class ClassifyRequest(InputFields, kw_only=True):
    use_activation: bool | None = None
    activation: bool | None = None
    """Older names of use_activation, `softmax` too."""
    softmax: bool | None = None


class ScoreRequest(PooledFields, kw_only=True):
    """Two sides under one of vLLM's pairs of names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    use_activation: bool | None = None


class Document(msgspec.Struct):
    text: str


class RerankRequest(PooledFields, kw_only=True):
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    """How many results are told; 0: all."""
    return_documents: bool = True
    use_activation: bool | None = None
    max_tokens_per_doc: int | None = None
    """Cohere's, refused, as the two below: all of a document counts."""
    max_chunks_per_doc: int | None = None
    rank_fields: list[str] | None = None
