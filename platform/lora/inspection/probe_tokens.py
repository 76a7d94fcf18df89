"""find_probe_tokens: which tokens a prompt must hold so that an adapter of single tokens' rows shows what it does."""

from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import chain, islice, zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..files.base_tensors import BaseTensors
from ..files.manifest import EMBEDDING, HEAD, BaseSignature, ModuleLora, TensorInfo
from ..files.values import read_bits, to_floats

MOST: Final = 16


def find_probe_tokens(
    file: FileIO, modules: Iterable[ModuleLora], base: BaseSignature, own: BaseTensors | None
) -> tuple[int, ...]:
    """At most MOST of the base's tokens whose embeddings or logits it changes, of each of its tensors in turn; none
    where it has nothing there. `own`: of the base, None where they are not at hand. EOFError where the file ends
    early."""
    ends = [module for module in modules if module.kind in (EMBEDDING, HEAD)]
    found = [
        list(islice((token for token in tokens if token < base.vocab_size), MOST))
        for module in ends
        for tokens in _of_tensors(file, module, base, own)
    ]
    in_turn = (token for token in chain.from_iterable(zip_longest(*found)) if token is not None)
    return tuple(islice(dict.fromkeys(in_turn), MOST))


def _of_tensors(
    file: FileIO, module: ModuleLora, base: BaseSignature, own: BaseTensors | None
) -> Iterator[Iterable[int]]:
    """Of each of its tensors that has something for single tokens: these tokens."""
    if module.kind == EMBEDDING and module.a is not None:
        yield _largest_first(_read(file, module.a).T)
    if module.kind == HEAD and module.b is not None:
        yield _largest_first(_read(file, module.b))
    if module.kind == HEAD:
        yield from (_largest_first(_read(file, each.tensor)) for each in module.vectors if each.role == "lora_bias")
    name = f"{base.path_of(module.layer, module.kind)}.weight"
    for rows in module.rows:
        tokens = range(rows.tensor.shape[0]) if rows.tokens is None else rows.tokens
        yield tokens if own is None else (tokens[at] for at in own.differing(file, rows.tensor, name, rows.tokens))


def _read(file: FileIO, tensor: TensorInfo) -> NDArray[np.float32]:
    return to_floats(read_bits(file, tensor), tensor.dtype)


def _largest_first(weights: NDArray[np.float32]) -> Iterator[int]:
    """Tokens with the largest weights first, none with zeros alone. weights: [tokens, ...]."""
    sizes = np.abs(weights).reshape(len(weights), -1).max(1)
    return (int(token) for token in np.argsort(-sizes, kind="stable") if sizes[token] > 0)
