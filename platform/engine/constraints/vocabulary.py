"""The texts of a tokenizer's tokens as llguidance wants them.

Special tokens are no text: whoever wants one names it in a grammar. A form whose text reads like one (`"<s>"` in a
schema, say) is spelled in other tokens. Added tokens that are not special are text like all others.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ..protocol import AddedToken

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END: Final = "<|end of the constrained text|>"
"""One token more than the vocabulary: where it is allowed, the text may end. Which tokens do so is known elsewhere."""
UNTYPED: Final = "<\ue000{}>"
"""What a special token is called where texts are cut into tokens: it shall not be found in any."""
PIECES: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|<[^<>\[\]\s"]+>')
"""Of a Lark grammar: strings, regular expressions, comments, and names of tokens, which stand in none of those."""


class Vocabulary(NamedTuple):
    tokenizer: "LLTokenizer"
    end: int
    """The id of END, the number of all tokens."""
    added: Mapping[str, int]
    """The ids of added tokens by their texts."""

    def by_ids(self, grammar: str) -> str:
        """A Lark grammar with its tokens by their ids: a name may be that of any added token, special or not."""
        return PIECES.sub(lambda piece: self._by_id(piece[0]), grammar)

    def _by_id(self, piece: str) -> str:
        token = self.added.get(piece) if piece.startswith("<") else None
        return piece if token is None else f"<[{token}]>"


class _Texts:
    """What llguidance asks of a tokenizer that is not its own."""

    bos_token_id = None

    def __init__(self, cutter: "LLTokenizer", end: int, added: Sequence[AddedToken]) -> None:
        self._cutter, self.eos_token_id = cutter, end
        self.tokens = [cutter.decode_bytes([token]) for token in range(end + 1)]
        self.special_token_ids = [token.id for token in added if token.special]
        for token in added:
            self.tokens[token.id] = token.content.encode()

    def __call__(self, text: bytes) -> list[int]:
        return self._cutter.tokenize_bytes(text)


def read_vocabulary(folder: Path, added: Sequence[AddedToken]) -> Vocabulary:
    """The tokenizer of the checkpoint in `folder` with further tokens.

    Takes about a second for 150,000 tokens, in which no other Python code of the process runs. ValueError when the
    tokenizer cannot be read.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    document: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokens = document.setdefault("added_tokens", [])
    tokens += [msgspec.to_builtins(token) for token in added]
    end = 1 + max([*(token["id"] for token in tokens), *_ids(document["model"]["vocab"])])
    tokens.append(msgspec.to_builtins(AddedToken(id=end, content=END, special=True)))
    known = [AddedToken(id=token["id"], content=token["content"], special=token["special"]) for token in tokens]
    _rename(document, {token.content: UNTYPED.format(token.id) for token in known if token.special})
    cutter = LLTokenizer(json.dumps(document), eos_token=end, slices=[])
    texts = TokenizerWrapper(_Texts(cutter, end, known))
    return Vocabulary(LLTokenizer(texts, n_vocab=end + 1), end, {token.content: token.id for token in known})


def _rename(document: dict[str, Any], names: Mapping[str, str]) -> None:
    """Added tokens, and their pieces where the model has them as well: ids go by those."""
    model = document["model"]
    for token in document["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token for piece, token in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]


def _ids(vocabulary: dict[str, int] | list[Any]) -> Sequence[int]:
    """Unigram models have a list."""
    return list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
