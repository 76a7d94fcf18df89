"""The parts of a tokenizer.json that must be the base's, compared by what they do rather than by how they are written.

Releases of the libraries spell the same tokenizer in different ways, and trainers save it anew beside each adapter.
"""

import json
from typing import Any, Final

PARTS: Final = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")
MEMBERS: Final = {"pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders"}
"""Where a sequence keeps its members."""
OFFSETS: Final = {"trim_offsets"}
"""Of a byte-level pre-tokenizer: it moves positions in the text, which nobody asks for here."""
MODEL_DEFAULTS: Final = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
"""What older releases leave out."""
AFFIXES: Final = ("continuing_subword_prefix", "end_of_word_suffix")


def differing_parts(own: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names of the parts in which the two tokenizers may give other ids or other text."""
    return [part for part in PARTS if _canonical(part, own.get(part)) != _canonical(part, theirs.get(part))]


def _canonical(part: str, value: Any) -> str:
    return json.dumps(_model(value) if part == "model" else _step(part, value), sort_keys=True)


def _model(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    affixes = {name: value.get(name) or None for name in AFFIXES}
    return {**MODEL_DEFAULTS, **value, **affixes, "merges": _merges(value.get("merges"))}


def _merges(merges: Any) -> Any:
    """Newer releases write pairs where older ones joined them with a space."""
    if not isinstance(merges, list):
        return merges
    return [pair.split(" ") if isinstance(pair, str) and pair.count(" ") == 1 else pair for pair in merges]


def _step(part: str, value: Any) -> Any:
    """One step, or None where it changes nothing that we ask for."""
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Sequence" and isinstance(members := value.get(MEMBERS.get(part, "")), list):
        steps = [step for step in (_step(part, member) for member in members) if step is not None]
        return {"type": "Sequence", "steps": steps} if len(steps) > 1 else next(iter(steps), None)
    return _byte_level(part, value) if value.get("type") == "ByteLevel" else value


def _byte_level(part: str, value: dict[str, Any]) -> Any:
    """After the model it only moves positions, as a decoder it has no options, before the model all others count."""
    if part == "pre_tokenizer":
        return {name: option for name, option in value.items() if name not in OFFSETS}
    return {"type": "ByteLevel"} if part == "decoder" else None
