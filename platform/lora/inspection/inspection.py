"""inspect_adapter: everything that must hold before an adapter may be served, and every reason why not."""

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from ..files.activation import judge_invocation_tokens
from ..files.base_tensors import BaseTensors
from ..files.config_file import LoraSettings, read_settings
from ..files.digest import canonical_tensors, digest_opening
from ..files.manifest import AdapterManifest, BaseSignature, Inspection, ModuleLora, TensorInfo
from ..files.report import Report, enumerate_some, quote
from ..files.safetensors_header import limits_of, read_header
from ..files.tensor_names import saved_twice
from ..files.values import LARGEST_WEIGHT, Magnitudes, same_values, scan_tensor
from .effect_check import report_effect
from .module_checks import match_modules
from .probe_tokens import find_probe_tokens
from .score_head import split_head
from .vocabulary_checks import vocabulary_of

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
READ_WHEN_REFUSED: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Structure:
    """All that an adapter's files say before a single weight is read."""

    settings: LoraSettings | None
    """None when adapter_config.json was refused."""
    tensors: tuple[TensorInfo, ...]
    modules: tuple[ModuleLora, ...]
    head: tuple[ModuleLora, ...]
    """Linears of a classification head, which no layer's arithmetic knows."""
    size: int
    """Bytes of the weights file."""
    vocab_size: int
    """As in AdapterManifest."""

    @property
    def whole(self) -> tuple[ModuleLora, ...]:
        """All that is the adapter's identity."""
        return *self.modules, *self.head

    @property
    def invocation_tokens(self) -> tuple[int, ...]:
        return self.settings.invocation_tokens if self.settings else ()


def inspect_adapter(config: bytes, weights: Path, base: BaseSignature, base_folder: Path | None = None) -> Inspection:
    """Judge adapter_config.json (`config`) and adapter_model.safetensors (`weights`) against the base, whose files are
    in `base_folder`: without it, copies of what the base has already count as changes.

    Never raises for what the files hold, never imports what they name, needs no torch. Raises OSError where the
    weights cannot be read.
    """
    report = Report()
    with weights.open("rb", buffering=0) as file:
        try:
            structure = read_structure(config, file, base, report)
            own = None if base_folder is None else BaseTensors(base_folder, base)
            digest = _judge_values(file, structure, base, own, report)
            probe_tokens = () if report.failed else find_probe_tokens(file, structure.modules, base, own)
        except EOFError as error:
            report.fail("header", f"adapter_model.safetensors cannot be read: {error}", "upload it again")
            return Inspection(None, tuple(report.findings))
    if report.failed or structure.settings is None:
        return Inspection(None, tuple(report.findings))
    _compare_base(structure.settings, base, report)
    return Inspection(_manifest(structure, structure.settings, base, digest, probe_tokens), tuple(report.findings))


def read_structure(config: bytes, file: FileIO, base: BaseSignature, report: Report) -> Structure:
    """Configuration and header, judged against each other and the base; failures go to `report`.

    EOFError where the file becomes shorter meanwhile.
    """
    size = os.fstat(file.fileno()).st_size
    settings = read_settings(config, report, base)
    tensors = read_header(file, size, report, limits_of(base, size))
    head, others = split_head(tensors, settings, base, report)
    if head and not others:
        report.fail("modules", "the file has a classification head and nothing else", "train a LoRA with it")
    modules = match_modules(others, settings, base, report) if others else ()
    vocab_size = vocabulary_of(modules, base)
    judge_invocation_tokens(settings.invocation_tokens if settings else (), modules, vocab_size, base, report)
    return Structure(settings, tensors, modules, head, size, vocab_size)


def _judge_values(
    file: FileIO, structure: Structure, base: BaseSignature, own: BaseTensors | None, report: Report
) -> str:
    """Read every byte once: the digest, values no weight can have, and adapters that do nothing."""
    if any(finding.check == "header" and finding.level == "fail" for finding in report.findings):
        return ""
    digest = hashlib.sha256(digest_opening(structure.invocation_tokens))
    unusable: list[str] = []
    seen: dict[TensorInfo, Magnitudes] = {}
    for facts, tensor in _reading_order(structure, report.failed):
        digest.update(facts)
        seen[tensor] = scan_tensor(file, tensor, digest.update)
        if not seen[tensor].usable:
            unusable.append(quote(tensor.name))
    _report_values(unusable, report)
    _compare_copies(file, structure, report)
    if structure.settings is not None:  # without them modules have no scaling and no tokens, and do nothing
        report_effect(file, structure.modules, seen, base, own, report)
    return digest.hexdigest()


def _reading_order(structure: Structure, failed: bool) -> Iterable[tuple[bytes, TensorInfo]]:
    """A refused adapter has no identity; its values are judged all the same, as far as that costs little."""
    if not failed:
        return canonical_tensors(structure.whole)
    return ((b"", tensor) for tensor in structure.tensors if tensor.end <= READ_WHEN_REFUSED)


def _report_values(unusable: list[str], report: Report) -> None:
    if unusable:
        message = f"some values are NaN, infinite or above {LARGEST_WEIGHT:.0f} in {enumerate_some(unusable)}"
        report.fail("values", message, "training diverged: use an earlier checkpoint")
    elif not report.failed:
        report.settle("values", "all values are finite")


def _compare_copies(file: FileIO, structure: Structure, report: Report) -> None:
    """What PEFT saves twice is served once: the two must not differ."""
    if report.failed:
        return
    by_name = {tensor.name: tensor for tensor in structure.tensors}
    copies = [(tensor, by_name.get(saved_twice(tensor.name) or "")) for tensor in structure.tensors]
    different = [
        quote(copy.name) for copy, tensor in copies if tensor is not None and not same_values(file, copy, tensor)
    ]
    if different:
        message = f"{enumerate_some(different)} differs from the weight it is a copy of"
        report.fail("values", message, "save the whole adapter again")


TEMPORARY = ("/tmp/", "/var/tmp/")
"""A base in such a folder has a name that says nothing."""


def _compare_base(settings: LoraSettings, base: BaseSignature, report: Report) -> None:
    named, own = (name.rstrip("/").rsplit("/", 1)[-1].lower() for name in (settings.base_model, base.name))
    if named and own and named != own and not settings.base_model.startswith(TEMPORARY):
        message = f"it was trained on {quote(settings.base_model)}, the base here is {quote(base.name)}"
        report.warn("base", message, "the shapes match, but make sure it is the same model")
    report.settle("base", "base_model_name_or_path names the base")


def _manifest(
    structure: Structure, settings: LoraSettings, base: BaseSignature, digest: str, probe_tokens: tuple[int, ...]
) -> AdapterManifest:
    modules, tensors = structure.modules, {tensor for _, tensor in canonical_tensors(structure.whole)}
    return AdapterManifest(
        digest=digest,
        peft_type=settings.peft_type,
        rank=max(module.rank for module in modules),
        alpha=settings.alpha,
        target_modules=tuple(sorted(set(map(base.word_for, {module.kind for module in structure.whole})))),
        base_model=settings.base_model,
        modules=modules,
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        size=structure.size,
        vocab_size=structure.vocab_size,
        config=settings.raw,
        invocation_tokens=settings.invocation_tokens,
        num_classes=structure.head[-1].rows[0].tensor.shape[0] if structure.head else 0,
        probe_tokens=probe_tokens,
    )
