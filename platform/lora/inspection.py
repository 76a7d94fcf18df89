"""inspect_adapter: everything that must hold before an adapter may be served, and every reason why not."""

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from .checks import match_modules
from .config_file import LoraSettings, read_settings
from .digest import DIGEST_TAG, canonical_tensors
from .manifest import AdapterManifest, BaseSignature, Inspection, ModuleLora, Role, TensorInfo
from .report import Report, enumerate_some, quote
from .safetensors_header import read_header
from .values import LARGEST_WEIGHT, Magnitudes, scan_tensor

READ_WHEN_REFUSED: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Structure:
    """All that an adapter's files say before a single weight is read."""

    settings: LoraSettings | None
    """None when adapter_config.json was refused."""
    tensors: tuple[TensorInfo, ...]
    modules: tuple[ModuleLora, ...]
    size: int
    """Bytes of the weights file."""


def inspect_adapter(config: bytes, weights: Path, base: BaseSignature) -> Inspection:
    """Judge adapter_config.json (`config`) and adapter_model.safetensors (`weights`) against the base.

    Never raises for what the files hold, never imports what they name, needs no torch. Raises OSError where the
    weights cannot be read.
    """
    report = Report()
    with weights.open("rb", buffering=0) as file:
        structure = read_structure(config, file, base, report)
        digest = _judge_values(file, structure, report)
    if report.failed or structure.settings is None:
        return Inspection(None, tuple(report.findings))
    _compare_base(structure.settings, base, report)
    return Inspection(_manifest(structure, structure.settings, digest), tuple(report.findings))


def read_structure(config: bytes, file: FileIO, base: BaseSignature, report: Report) -> Structure:
    """Configuration and header, judged against each other and the base; failures go to `report`."""
    size = os.fstat(file.fileno()).st_size
    settings = read_settings(config, report)
    tensors = read_header(file, size, report)
    modules = match_modules(tensors, settings, base, report) if tensors else ()
    return Structure(settings, tensors, modules, size)


def _judge_values(file: FileIO, structure: Structure, report: Report) -> str:
    """Read every byte once: the digest, values no weight can have, and adapters that do nothing."""
    if any(finding.check == "header" and finding.level == "fail" for finding in report.findings):
        return ""
    digest = hashlib.sha256(DIGEST_TAG)
    unusable: list[str] = []
    seen: dict[TensorInfo, Magnitudes] = {}
    for facts, tensor in _reading_order(structure, report.failed):
        digest.update(facts)
        seen[tensor] = scan_tensor(file, tensor, digest.update)
        if not seen[tensor].usable:
            unusable.append(quote(tensor.name))
    _report_values(unusable, report)
    _report_effect(structure.modules, seen, report)
    return digest.hexdigest()


def _reading_order(structure: Structure, failed: bool) -> Iterable[tuple[bytes, TensorInfo]]:
    """A refused adapter has no identity; its values are judged all the same, as far as that costs little."""
    if not failed:
        return canonical_tensors(structure.modules)
    return ((b"", tensor) for tensor in structure.tensors if tensor.end <= READ_WHEN_REFUSED)


def _report_values(unusable: list[str], report: Report) -> None:
    if unusable:
        message = f"values that are NaN, infinite or above {LARGEST_WEIGHT:.0f} in {enumerate_some(unusable)}"
        report.fail("values", message, "the training diverged: take an earlier checkpoint")
    elif not report.failed:
        report.settle("values", "all values are finite")


def _report_effect(modules: tuple[ModuleLora, ...], seen: dict[TensorInfo, Magnitudes], report: Report) -> None:
    idle = [f"{module.kind} of layer {module.layer}" for module in modules if not _has_effect(module, seen)]
    if modules and len(idle) == len(modules):
        message = "the adapter has no effect: in every module A or B is zero, and vectors change nothing"
        report.fail("effect", message, "it was saved before it was trained, or the trained tensors are missing")
    elif idle:
        report.warn("effect", f"modules without effect, as A or B is zero: {enumerate_some(idle)}")
    if not report.failed:
        report.settle("effect", f"{len(modules) - len(idle)} modules change the answers")


def _has_effect(module: ModuleLora, seen: dict[TensorInfo, Magnitudes]) -> bool:
    """Judged without the base: a trained bias may equal the base's, a magnitude alone is what training starts from."""
    if (
        module.a is not None
        and module.b is not None
        and not any(tensor in seen and seen[tensor].zero for tensor in (module.a, module.b))
    ):
        return True
    return any(_vector_has_effect(vector.role, seen.get(vector.tensor)) for vector in module.vectors)


def _vector_has_effect(role: Role, seen: Magnitudes | None) -> bool:
    if role == "gain":
        return seen is None or not seen.one
    return role == "bias" or (role == "lora_bias" and (seen is None or not seen.zero))


TEMPORARY = ("/tmp/", "/var/tmp/")
"""A base in such a folder has a name that says nothing."""


def _compare_base(settings: LoraSettings, base: BaseSignature, report: Report) -> None:
    named, own = (name.rstrip("/").rsplit("/", 1)[-1].lower() for name in (settings.base_model, base.name))
    if named and own and named != own and not settings.base_model.startswith(TEMPORARY):
        message = f"it was trained on {quote(settings.base_model)}, the base served here is {quote(base.name)}"
        report.warn("base", message, "shapes fit, but make sure that it is the same model")
    report.settle("base", "its shapes are those of the base")


def _manifest(structure: Structure, settings: LoraSettings, digest: str) -> AdapterManifest:
    modules = structure.modules
    return AdapterManifest(
        digest=digest,
        peft_type=settings.peft_type,
        rank=max(module.rank for module in modules),
        alpha=settings.alpha,
        target_modules=tuple(sorted({module.kind for module in modules})),
        base_model=settings.base_model,
        modules=modules,
        parameters=sum(math.prod(tensor.shape) for module in modules for _, tensor in module.tensors()),
        size=structure.size,
        config=settings.raw,
    )
