"""Bases as adapters see them: those of Llama's shape, by the few numbers in which they differ."""

from collections.abc import Mapping
from typing import Any

from loraplex.lora.files.manifest import EMBEDDING, HEAD, BaseSignature, ModuleKind

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm")
KINDS = (*LINEARS, HEAD, EMBEDDING, *NORMS)
"""In the order of the page table's rows, of a base that has all of them."""
ONCE = (HEAD, EMBEDDING, "norm")
IN_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
ROLES = dict.fromkeys(LINEARS, "linear") | dict.fromkeys(NORMS, "norm") | {HEAD: "head", EMBEDDING: "embedding"}
Shapes = Mapping[str, tuple[int, int]]


def llama_signature(
    fingerprint: str,
    num_layers: int,
    kinds: Shapes,
    name: str = "",
    vocab_size: int = 0,
    hidden_size: int = 0,
    normed_head_size: int = 0,
    tied: bool = False,
) -> BaseSignature:
    """`kinds`: of the linears. No vocabulary: nothing but these."""
    shapes = dict(kinds)
    if vocab_size:
        shapes |= {HEAD: (hidden_size, vocab_size), EMBEDDING: (vocab_size, hidden_size)}
        shapes |= dict.fromkeys(NORMS[:3], (0, hidden_size))
    if normed_head_size:
        shapes |= dict.fromkeys(NORMS[3:], (0, normed_head_size))
    modules = {kind: _module(kind, shape, num_layers) for kind, shape in shapes.items()}
    return BaseSignature(fingerprint, num_layers, modules, name, vocab_size, hidden_size, tied)


def with_linears(base: BaseSignature, shapes: Shapes, num_layers: int | None = None, **others: Any) -> BaseSignature:
    """`base`, of Llama's shape, with other shapes of its linears."""
    size = base.shapes().get("q_norm", (0, 0))[1]
    known = {"name": base.name, "vocab_size": base.vocab_size, "hidden_size": base.hidden_size, "tied": base.tied}
    layers = base.num_layers if num_layers is None else num_layers
    return llama_signature(base.fingerprint, layers, shapes, normed_head_size=size, **known | others)


def module_path(layer: int, kind: str) -> str:
    """In a model of Llama's shape."""
    base = llama_signature("", layer + 1, dict.fromkeys(LINEARS, (1, 1)), "", 1, 1, 1)
    return base.path_of(layer, kind)


def row_shapes(shapes: Shapes, rows: tuple[str, ...] = KINDS) -> dict[str, tuple[int, int]]:
    """For a page table with these rows, of which only those in `shapes` are used."""
    return {kind: shapes.get(kind, (0, 0)) for kind in rows}


def _module(kind: str, shape: tuple[int, int], num_layers: int) -> ModuleKind:
    role: Any = ROLES[kind]
    parent = "self_attn." if kind in IN_ATTENTION else "mlp." if role == "linear" else ""
    layers = None if kind in ONCE else tuple(range(num_layers))
    return ModuleKind(parent + kind, role, *shape, layers, gains_from="up_proj" if kind == "down_proj" else None)
