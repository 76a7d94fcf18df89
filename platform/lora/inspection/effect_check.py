"""report_effect: an adapter that would answer as the base does is refused, whichever way it comes to nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import FileIO
from typing import Final

import numpy as np

from ..files.base_tensors import BaseTensors
from ..files.manifest import BaseSignature, ModuleLora, OutputVector, Role, TensorInfo
from ..files.report import Report, enumerate_some
from ..files.values import LARGEST_WEIGHT, Magnitudes, read_bits, to_floats

INCOMPLETE: Final = ("modules", "features", "shapes", "ranks")
"""Checks by which modules are left out of the adapter."""
NEGLIGIBLE: Final = 2.0**-40
"""A change of weights that no activation computed in float32 would show."""
COPY: Final = ".base_layer."
"""PEFT saves the base's own embedding and head beside their LoRA."""
REPLACING: Final = {"bias": "bias", "norm": "weight", "norm_bias": "bias"}
"""Roles of vectors that stand instead of the base's own -> what these are called."""
ROUNDING: Final = 1e-5
"""Of the sum of all magnitudes: far above what float32 rounds away, far below what any training leaves."""


def report_effect(
    file: FileIO,
    modules: tuple[ModuleLora, ...],
    seen: Mapping[TensorInfo, Magnitudes],
    base: BaseSignature,
    own: BaseTensors | None,
    report: Report,
) -> None:
    """Judge by `seen`, the tensors that were read; what was not read may be anything, and so may a module that did not
    fit: then nothing is said of the adapter as a whole. `own`: the base's, None where they are not at hand."""
    if any(finding.level == "fail" and finding.check in INCOMPLETE for finding in report.findings):
        return
    idle = [f"{module.kind} of layer {module.layer}" for module in modules if not _has_effect(module, seen)]
    if modules and len(idle) == len(modules):
        message = "the adapter has no effect: A, B or the scaling is (nearly) zero everywhere"
        report.fail("effect", message, "it was saved before training, or the trained tensors are missing")
    elif modules and not report.failed and all(_cancels_out(file, module) for module in modules):
        message = "the adapter has no effect: in every module the products of B and A cancel out"
        report.fail("effect", message, "training does not produce such tensors: save the adapter again")
    elif modules and not report.failed and own is not None and _repeats_the_base(file, modules, seen, base, own):
        message = "the adapter has no effect: A, B or the scaling is (nearly) zero, and the rest is the base's own"
        report.fail("effect", message, "it was saved before training: biases, norms and tokens are unchanged")
    elif idle:
        report.warn("effect", f"modules with no effect, because A or B is (nearly) zero: {enumerate_some(idle)}")
    if not report.failed:
        report.settle("effect", f"{len(modules) - len(idle)} modules change the answers")


def _has_effect(module: ModuleLora, seen: Mapping[TensorInfo, Magnitudes]) -> bool:
    """Judged without the base: trained biases, norms and rows of tokens may equal the base's, a magnitude alone is what
    training starts from."""
    return (
        not _bound(module, seen) < NEGLIGIBLE
        or any(_vector_has_effect(vector.role, seen.get(vector.tensor)) for vector in module.vectors)
        or any(COPY not in part.tensor.name for part in module.rows)
    )


def _repeats_the_base(
    file: FileIO,
    modules: tuple[ModuleLora, ...],
    seen: Mapping[TensorInfo, Magnitudes],
    base: BaseSignature,
    own: BaseTensors,
) -> bool:
    """Whether nothing adds or scales anything, and all that stands instead of something of the base is the same."""
    adding = [replace(module, rows=(), vectors=_not_replacing(module)) for module in modules]
    return not any(_has_effect(module, seen) for module in adding) and all(
        own.repeats(file, tensor, name, rows)
        for module in modules
        for tensor, name, rows in _replacements(module, base)
    )


def _not_replacing(module: ModuleLora) -> tuple[OutputVector, ...]:
    return tuple([vector for vector in module.vectors if vector.role not in REPLACING])


def _replacements(module: ModuleLora, base: BaseSignature) -> Iterator[tuple[TensorInfo, str, tuple[int, ...] | None]]:
    """Tensors, what they stand for, and of which rows of that."""
    path = base.path_of(module.layer, module.kind)
    for vector in module.vectors:
        if vector.role in REPLACING:
            yield vector.tensor, f"{path}.{REPLACING[vector.role]}", None
    for part in module.rows:
        yield part.tensor, f"{path}.weight", part.tokens


def _bound(module: ModuleLora, seen: Mapping[TensorInfo, Magnitudes]) -> float:
    """No entry of scaling B A is above it; NaN where one of them is."""
    if module.a is None or module.b is None:
        return 0.0
    a, b = (seen[tensor].largest if tensor in seen else LARGEST_WEIGHT for tensor in (module.a, module.b))
    return abs(module.scaling) * module.rank * a * b


def _vector_has_effect(role: Role, seen: Magnitudes | None) -> bool:
    if role == "gain":
        return seen is None or not seen.one
    return role in REPLACING or (role == "lora_bias" and (seen is None or seen.largest > 0))


def _cancels_out(file: FileIO, module: ModuleLora) -> bool:
    """Whether B A x is nothing but rounding, for an x that no weights were made for. EOFError where the file ends."""
    if module.a is None or module.b is None or module.vectors:
        return False
    exact = np.cos(np.square(np.arange(module.a.shape[1], dtype=np.float64))).astype(np.float32)
    magnitudes = np.abs(exact)
    for tensor in (module.a, module.b):
        weights = to_floats(read_bits(file, tensor), tensor.dtype)
        exact = weights @ exact
        magnitudes = np.abs(weights) @ magnitudes
    return float(np.abs(exact).max()) <= ROUNDING * float(magnitudes.max())
