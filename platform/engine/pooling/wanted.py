"""Pooling: what a request asks for that wants vectors of its prompt instead of a text. No numpy."""

import enum
from typing import Final, Literal

import msgspec


class PoolingKind(enum.StrEnum):
    """Which tokens' hidden states after the last norm make the vector."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"
    """The first token's."""
    MAX = "max"
    """Of all tokens, the largest of each number."""
    ALL = "all"
    """Each token's, a vector of its own."""


Activation = Literal["", "auto", "sigmoid"]
"""None; softmax over several classes and sigmoid of a single one; sigmoid of each."""


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """`dimensions`: only so many first numbers, cut before the vector is scaled to length 1 (Matryoshka).

    `classify`: the scores of a classification head take the vector's place: those of the adapter's own head, else the
    base's. `activation` makes probabilities of them.
    """

    kind: PoolingKind
    normalize: bool = False
    dimensions: int | None = None
    classify: bool = False
    activation: Activation = ""

    def positions(self, start: int, end: int, prompt_length: int) -> range:
        """Of those from `start` to before `end`: the ones whose hidden states count."""
        match self.kind:
            case PoolingKind.MEAN | PoolingKind.MAX | PoolingKind.ALL:
                return range(start, end)
            case PoolingKind.CLS:
                return range(start, min(end, 1))
            case PoolingKind.LAST:
                return range(max(start, prompt_length - 1), end)

    @property
    def by_token(self) -> bool:
        """Whether the result is a vector for each token."""
        return self.kind is PoolingKind.ALL

    @property
    def needs_whole_prompt(self) -> bool:
        """Cached blocks have keys and values, but no hidden states."""
        return self.kind is not PoolingKind.LAST


class ModelPooling(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's embeddings are made, unless a request says otherwise."""

    kind: PoolingKind
    normalize: bool
    size: int
    """Numbers of a whole vector."""
    source: str
    """What says so, in words."""
    prompt: str = ""
    """Put before each text, as the model's files say."""

    def pooling(self, dimensions: int | None = None, normalize: bool | None = None, by_token: bool = False) -> Pooling:
        """`by_token`: a vector for each token. ValueError for more dimensions than there are."""
        if dimensions is not None and not 1 <= dimensions <= self.size:
            raise ValueError(f"dimensions must be between 1 and {self.size}, the model's own, got {dimensions}")
        normalize = self.normalize if normalize is None else normalize
        return Pooling(kind=PoolingKind.ALL if by_token else self.kind, normalize=normalize, dimensions=dimensions)


class PairTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """How the chat template joins a pair of texts: as messages of the roles query and document."""

    system: str = ""
    """What a system message before them says; empty: there is none."""
    add_generation_prompt: bool = False

    def messages(self, query: str, document: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "query", "content": query}, {"role": "document", "content": document}]


class ModelClasses(msgspec.Struct, frozen=True, kw_only=True):
    """Of a base that classifies."""

    labels: list[str]
    activation: Activation = "auto"
    pairs: PairTemplate | None = None
    """Of a base that judges pairs by two tokens. None: the tokenizer joins pairs."""


WHOLE_ALONE: Final = (
    "the classes of tokens are told by a checkpoint that was made for them (ForTokenClassification), which this model "
    "is not"
)
TOKENS_ALONE: Final = "this model tells the classes of single tokens, and none of a whole text; ask for token_classify"


def classification(
    base: ModelClasses | None, kind: PoolingKind, activation: bool = True, by_token: bool = False
) -> Pooling:
    """Scores of classes. `base` None: it is an adapter that classifies. `kind`: which tokens they are made of.
    `activation`: probabilities of them. ValueError for classes of tokens where the model tells those of whole prompts,
    and the other way round."""
    if by_token is not (kind is PoolingKind.ALL):
        raise ValueError(WHOLE_ALONE if by_token else TOKENS_ALONE)
    of_scores: Activation = "auto" if base is None else base.activation
    return Pooling(kind=kind, classify=True, activation=of_scores if activation else "")
