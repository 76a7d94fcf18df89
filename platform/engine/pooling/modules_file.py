"""How the embeddings of a checkpoint are made: as its files for sentence-transformers say. No torch."""

import json
from pathlib import Path
from typing import Any, Final

from ..model.config import SENTENCE_CONFIG, read_json
from .wanted import ModelPooling, PoolingKind

MODULES_FILE: Final = "modules.json"
MODES: Final = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_max_tokens": PoolingKind.MAX,
}
NAMES: Final = {"lasttoken": PoolingKind.LAST, "mean": PoolingKind.MEAN, "cls": PoolingKind.CLS, "max": PoolingKind.MAX}
"""Of a config with one `pooling_mode`."""
DEFAULT: Final = "the mean of all hidden states, scaled to length 1: the model has no modules.json that says otherwise"


def read_pooling(folder: Path, hidden_size: int) -> ModelPooling:
    """ValueError says which of its modules is not supported."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return ModelPooling(kind=PoolingKind.MEAN, normalize=True, size=hidden_size, source=DEFAULT)
    lowers = folder / SENTENCE_CONFIG
    if lowers.is_file() and read_json(lowers).get("do_lower_case"):
        raise ValueError(f"do_lower_case in {SENTENCE_CONFIG} is not supported: let the tokenizer's normalizer do it")
    kind, normalize = None, False
    for module in list_modules(path):
        match str(module.get("type")).rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                kind = _kind(folder / str(module.get("path", "")) / "config.json")
            case "Normalize":
                normalize = True
            case other:
                raise ValueError(
                    f"{MODULES_FILE} has a module {other!r}, which is not supported; supported: Transformer, Pooling, "
                    "Normalize"
                )
    if kind is None:
        raise ValueError(f"{MODULES_FILE} has no Pooling module: nothing says how a vector is made of the tokens")
    source = f"{kind}{', scaled to length 1' if normalize else ''}, as {MODULES_FILE} says"
    return ModelPooling(kind=kind, normalize=normalize, size=hidden_size, source=source)


def list_modules(path: Path) -> list[dict[str, Any]]:
    """ValueError for a file that is no list of objects."""
    try:
        modules = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{path} must hold a list of modules")
    return modules


def _kind(path: Path) -> PoolingKind:
    if not path.is_file():
        raise ValueError(f"{MODULES_FILE} names a Pooling module, and {path} is missing")
    said = read_json(path)
    if isinstance(said.get("pooling_mode"), str):
        modes = [said["pooling_mode"]]
    else:
        modes = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    kinds = [kind for mode in modes if (kind := MODES.get(mode) or NAMES.get(mode)) is not None]
    if len(modes) != 1 or len(kinds) != 1:
        raise ValueError(
            f"the pooling {', '.join(modes) or 'of none'} of {path.parent.name} is not supported; supported: one of "
            f"{', '.join(MODES)}"
        )
    return kinds[0]
