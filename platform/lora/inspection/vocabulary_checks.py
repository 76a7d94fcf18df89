"""match_rows: rows of the embedding and of the head that an adapter brings must fit each other and the base."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..files.config_fields import MAX_TOKENS
from ..files.config_file import LoraSettings
from ..files.manifest import EMBEDDING, HEAD, BaseSignature, ModuleLora, TensorInfo, TokenRows
from ..files.tensor_names import ModuleLocation, place_of


def match_rows(
    modules: Sequence[ModuleLora],
    found: Mapping[ModuleLocation, Mapping[str, TensorInfo]],
    settings: LoraSettings | None,
    base: BaseSignature,
    problems: list[str],
) -> tuple[ModuleLora, ...]:
    """The modules, with the rows of embedding and head where the file has any. Sentences go to `problems`."""
    by_place = {(module.layer, module.kind): module for module in modules}
    rows = {place: _rows(place, found.get(place, {}), settings, base, problems) for place in _ends(base)}
    if base.tied:
        rows = _share(rows, settings)
    for (layer, kind, *_), own in rows.items():
        if own:
            module = by_place.get((layer, kind), ModuleLora(layer, kind, 0, 1.0, None, None))
            by_place[layer, kind] = replace(module, rows=own)
    _compare_sizes([_count(own, base, problems) for own in rows.values()], base, problems)
    return tuple([by_place[place] for place in sorted(by_place)])


def _ends(base: BaseSignature) -> list[ModuleLocation]:
    """Embedding and head, as far as the base says that it has them."""
    return [place_of(base, 0, kind) for kind in (EMBEDDING, HEAD) if kind in base.modules]


def trained_tokens(place: ModuleLocation, settings: LoraSettings, base: BaseSignature) -> tuple[int, ...] | None:
    """The tokens that PEFT trains rows of, if any there. A tied head follows the embedding."""
    tokens = settings.tokens_of(place.path, place.kind)
    follows = base.tied and place.kind == HEAD and tokens is None
    return settings.tokens_of(base.path_of(0, EMBEDDING), EMBEDDING) if follows else tokens


def targets_place(place: ModuleLocation, settings: LoraSettings, base: BaseSignature) -> bool:
    """Whether PEFT puts an adapter there."""
    named = settings.targets(place, base.modules[place.kind].role == "linear")
    return named or (_follows(place, settings, base) and settings.targets(place_of(base, 0, EMBEDDING), False))


def saves_place(place: ModuleLocation, settings: LoraSettings, base: BaseSignature) -> bool:
    """Whether PEFT saves it as a whole."""
    return settings.saves(place.path) or (
        _follows(place, settings, base) and settings.saves(base.path_of(0, EMBEDDING))
    )


def expected_rank(place: ModuleLocation, settings: LoraSettings, base: BaseSignature) -> int:
    """A tied head has the embedding's matrices, though its own scaling."""
    follows = _follows(place, settings, base)
    return settings.rank_of(base.path_of(0, EMBEDDING) if follows else place.path)


def _follows(place: ModuleLocation, settings: LoraSettings, base: BaseSignature) -> bool:
    """Whether what is done to the embedding is done to it as well (ensure_weight_tying)."""
    return settings.ties_ends and base.tied and place.kind == HEAD


def vocabulary_of(modules: Sequence[ModuleLora], base: BaseSignature) -> int:
    """Tokens that the adapted model knows; 0: as many as the base."""
    sizes = {_count(module.rows, base, []) for module in modules if module.rows}
    return next((size for size in sizes if size != base.vocab_size), 0)


def _rows(
    place: ModuleLocation,
    parts: Mapping[str, TensorInfo],
    settings: LoraSettings | None,
    base: BaseSignature,
    problems: list[str],
) -> tuple[TokenRows, ...]:
    rows = [TokenRows(parts["all rows"], None)] if "all rows" in parts else []
    tokens = None if settings is None else trained_tokens(place, settings, base)
    if "rows" in parts and tokens is not None:
        rows.append(TokenRows(parts["rows"], tokens))
    elif tokens is not None and not (base.tied and place.kind == HEAD):
        problems.append(f"trainable_token_indices has {len(tokens)} tokens of {place}, which are not in the file")
    return tuple([part for part in rows if _fits(place, part, base, problems)])


def _fits(place: ModuleLocation, rows: TokenRows, base: BaseSignature, problems: list[str]) -> bool:
    shape, size = rows.tensor.shape, base.modules[place.kind].row_size
    count = None if rows.tokens is None else len(rows.tokens)
    fits = len(shape) == 2 and shape[1] == size and shape[0] == (count or shape[0])
    if not fits:
        expected = f"[{count or 'tokens'}, {size}]"
        problems.append(f"{place}: {rows.tensor.name.rsplit('.', 1)[-1]} is {list(shape)}, not {expected}")
    return fits


def _share(
    rows: dict[ModuleLocation, tuple[TokenRows, ...]], settings: LoraSettings | None
) -> dict[ModuleLocation, tuple[TokenRows, ...]]:
    """What PEFT writes into a weight that embedding and head have in common changes both.

    A copy made by modules_to_save is not that weight any more, and single tokens that are trained of the head alone
    stand beside it; where both have their own there is nothing to share.
    """
    shared = dict(rows)
    ends = tuple(rows)
    for place, other in (ends, ends[::-1]):
        single = {part.tokens is None for part in rows[other]}
        missing = [
            part for part in rows[place] if (part.tokens is None) not in single and not _is_own(part, place, settings)
        ]
        shared[other] = tuple(sorted([*shared[other], *missing], key=lambda part: part.tokens is not None))
    return shared


def _is_own(rows: TokenRows, place: ModuleLocation, settings: LoraSettings | None) -> bool:
    """Whether they stand beside the weight that embedding and head have in common."""
    if rows.tokens is not None:
        return place.kind == HEAD
    return settings is not None and settings.saves(place.path)


def _count(rows: tuple[TokenRows, ...], base: BaseSignature, problems: list[str]) -> int:
    """How many tokens there are with these rows."""
    whole = [part.tensor.shape[0] for part in rows if part.tokens is None]
    size = whole[0] if whole else base.vocab_size
    added = sorted(token for part in rows for token in part.tokens or () if token >= size)
    if added != list(range(size, size + len(added))):
        problems.append(f"trainable_token_indices has the token {added[-1]}, but there are {size} tokens before it")
    return size + len(added)


def _compare_sizes(sizes: list[int], base: BaseSignature, problems: list[str]) -> None:
    if len(set(sizes)) > 1:
        problems.append(f"embed_tokens has {sizes[0]:,} rows and lm_head {sizes[1]:,}; they must match")
    if sizes and max(sizes) > base.vocab_size and base.knows_tokens_by_layer:
        problems.append(
            f"{max(sizes) - base.vocab_size:,} tokens are added, and each layer of the base has an input of its own "
            "for each token, which no adapter brings"
        )
    if sizes and max(sizes) > base.vocab_size + MAX_TOKENS:
        problems.append(f"{max(sizes) - base.vocab_size:,} tokens are added; the limit is {MAX_TOKENS:,}")
