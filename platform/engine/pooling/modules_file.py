"""How the embeddings of a checkpoint are made: as its files for sentence-transformers say. No torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..model.config import SENTENCE_CONFIG, read_json
from .dense import DenseSpec, read_dense_spec
from .wanted import ModelPooling, PoolingKind

MODULES_FILE: Final = "modules.json"
PROMPTS_FILE: Final = "config_sentence_transformers.json"
MODES: Final = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_max_tokens": PoolingKind.MAX,
}
NAMES: Final = {"lasttoken": PoolingKind.LAST, "mean": PoolingKind.MEAN, "cls": PoolingKind.CLS, "max": PoolingKind.MAX}
"""Of a config with one `pooling_mode`."""
SUPPORTED: Final = ("Transformer", "Pooling", "Dense", "Normalize")
TEXT: Final = {"method": "forward", "method_output_name": "last_hidden_state"}
OF_TEXTS: Final = ("text", "common")
OF_QUERIES: Final = ("query_length", "document_length", "query_expansion")
DEFAULT: Final = "the mean of all hidden states, scaled to length 1: the model has no modules.json that says otherwise"


@dataclass(frozen=True, slots=True)
class Modules:
    """How embeddings are made."""

    pooling: ModelPooling
    dense: tuple[DenseSpec, ...] = ()
    """One after the other, behind the pooling."""


def read_modules(folder: Path, hidden_size: int) -> Modules:
    """ValueError says which of the model's modules is not supported."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return Modules(ModelPooling(kind=PoolingKind.MEAN, normalize=True, size=hidden_size, source=DEFAULT))
    kind, dense, normalize, prompt = None, list[DenseSpec](), False, default_prompt(folder)
    for module in list_modules(path):
        name, own = str(module.get("type")).rpartition(".")[2], folder / str(module.get("path", ""))
        match name:
            case "Transformer":
                _check_transformer(own / SENTENCE_CONFIG)
            case "Pooling":
                kind = _kind(own / "config.json", prompt)
            case "Dense" if kind is not None and not normalize:
                dense.append(read_dense_spec(own))
            case "Normalize":
                normalize = True
            case "Dense":
                raise ValueError(f"{MODULES_FILE} has a module 'Dense' elsewhere than between Pooling and Normalize")
            case other:
                raise ValueError(
                    f"{MODULES_FILE} has a module {other!r}, which is not supported; supported: {', '.join(SUPPORTED)}"
                )
    if kind is None:
        raise ValueError(f"{MODULES_FILE} has no Pooling module: nothing says how a vector is made of the tokens")
    _check_sizes(hidden_size, dense)
    source = f"{kind}{f', {len(dense)} Dense' if dense else ''}{', scaled to length 1' if normalize else ''}"
    source += f", as {MODULES_FILE} says"
    source += f"; {prompt!r} is put before each text, as {PROMPTS_FILE} says" if prompt else ""
    size = dense[-1].outputs if dense else hidden_size
    pooling = ModelPooling(kind=kind, normalize=normalize, size=size, source=source, prompt=prompt)
    return Modules(pooling, tuple(dense))


def _check_transformer(path: Path) -> None:
    """What the file says of how a text becomes hidden states: tokens of the text alone, and those of the last norm."""
    said = read_json(path) if path.is_file() else {}
    modalities = said.get("modality_config") or {"text": {}}
    if said.get("do_lower_case"):
        raise ValueError(f"do_lower_case in {SENTENCE_CONFIG} is not supported: let the tokenizer's normalizer do it")
    if not isinstance(modalities, dict) or not all(isinstance(one, dict) for one in modalities.values()):
        raise ValueError(f"modality_config in {SENTENCE_CONFIG} must hold an object for each modality")
    if "message" in modalities:
        raise ValueError(
            f"modality_config in {SENTENCE_CONFIG} has 'message': each text would go through the chat template, which "
            "is not supported. A model that was trained on texts without one has 'text' alone there"
        )
    if "text" not in modalities:
        raise ValueError(f"modality_config in {SENTENCE_CONFIG} has no 'text', and texts alone are embedded")
    for name, supported in TEXT.items():
        if modalities["text"].get(name, supported) not in (supported, [supported]):
            raise ValueError(f"{name} {modalities['text'][name]!r} of 'text' in {SENTENCE_CONFIG} is not {supported!r}")
    changed = [name for name in OF_TEXTS if (said.get("processing_kwargs") or {}).get(name)]
    changed = [f"{name} of processing_kwargs" for name in changed] + [name for name in OF_QUERIES if said.get(name)]
    if changed:
        raise ValueError(f"{changed[0]} in {SENTENCE_CONFIG} is not supported: it changes which tokens are embedded")


def _check_sizes(hidden_size: int, dense: list[DenseSpec]) -> None:
    size = hidden_size
    for one in dense:
        if one.inputs != size:
            raise ValueError(f"{one.folder.name} reads {one.inputs} numbers, and there are {size}")
        size = one.outputs


def default_prompt(folder: Path) -> str:
    """What sentence-transformers puts before each text where nobody names a prompt. ValueError for one that is not
    there."""
    path = folder / PROMPTS_FILE
    said = read_json(path) if path.is_file() else {}
    prompts, name = said.get("prompts") or {}, said.get("default_prompt_name")
    if name is None:
        return ""
    if not isinstance(prompts, dict) or name not in prompts:
        raise ValueError(f"default_prompt_name {name!r} in {PROMPTS_FILE} is none of its prompts")
    return str(prompts[name] or "")


def list_modules(path: Path) -> list[dict[str, Any]]:
    """ValueError for a file that is no list of objects."""
    try:
        modules = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{path} must hold a list of modules")
    return modules


def _kind(path: Path, prompt: str) -> PoolingKind:
    """`prompt`: before each text."""
    if not path.is_file():
        raise ValueError(f"{MODULES_FILE} names a Pooling module, and {path} is missing")
    said = read_json(path)
    if prompt and said.get("include_prompt") is False:
        words = f"include_prompt false in {path.parent.name} beside a default_prompt_name is not supported"
        raise ValueError(f"{words}: each token counts")
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
