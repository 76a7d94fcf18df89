"""convert_adapter: an AdaLoRA, LoHa, LoKr or VeRA adapter, or a LoRA with tensors of all experts, as the LoRA adapter
that changes the weights the same way.

Exact wherever the rank of the change can be served; beyond that the nearest LoRA of the largest rank (by singular
values), refused when it is not near enough. One module is in memory at a time. No torch, no PEFT.

All that header and configuration tell is judged before a value is read, and every value before any are multiplied. What
only the product tells (how near a LoRA comes, factors that cancel out or make too large values) ends at the first
module that shows it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final, Protocol

from ..files.config_fields import MAX_RANK
from ..files.config_file import LoraSettings
from ..files.manifest import BaseSignature, Finding
from ..files.report import Report, enumerate_some
from ..files.safetensors_header import limits_of, read_header
from ..files.strict_json import parse_json
from ..files.tensor_names import OTHER_BASE, ModuleLocation
from . import adalora, loha, lokr, vera
from .factors import Change, TooLarge, Unfit, relative
from .kinds import KINDS, SMALLER, has_stacked, read_source_settings
from .shared_outer import convert_shared
from .source import Module, Scan, Shapes, Tensors, compare_targets, sort_tensors
from .stacked import convert_stacked
from .write import WeightsFile, lora_config

MAX_ERROR: Final = 0.01
"""Relative Frobenius error of one module's change above which an adapter is refused."""
EXACTLY: Final = 1e-5
"""An error below this is called none."""


class Algebra(Protocol):
    """What the file of each kind holds."""

    @property
    def PARTS(self) -> frozenset[str]:
        """Names of the tensors of a module, and of the adapter as a whole."""

    def shapes(self, module: Module) -> Shapes:
        """Of the parts that the module must have, by the shapes it has. Raises Unfit, TooLarge."""

    def change(self, module: Module) -> Change:
        """What the adapter adds to the module's weight, a product in which every part is a factor. Its shapes are
        right, its values finite."""


_ALGEBRA: Final[dict[str, Algebra]] = {"ADALORA": adalora, "LOHA": loha, "LOKR": lokr, "VERA": vera}


@dataclass(slots=True)
class _Outcome:
    """What became of the modules."""

    ranks: dict[ModuleLocation, int] = field(default_factory=dict)
    idle: list[ModuleLocation] = field(default_factory=list)
    square: float = 0.0
    lost: float = 0.0
    worst: float = 0.0
    worst_module: str = ""

    def note(self, place: ModuleLocation, change: Change) -> None:
        if change.square == 0:
            self.idle.append(place)
            return
        self.ranks[place] = change.rank
        self.square, self.lost = self.square + change.square, self.lost + change.lost
        if change.error > self.worst:
            self.worst, self.worst_module = change.error, str(place)


class _Problems:
    """What is wrong with modules, by what helps."""

    def __init__(self) -> None:
        self._unfit: list[str] = []
        self._too_large: list[str] = []

    def note(self, place: ModuleLocation, error: Unfit) -> None:
        (self._too_large if isinstance(error, TooLarge) else self._unfit).append(f"{place} {error}")

    def tell(self, report: Report) -> None:
        report.fail_all("modules", self._unfit, OTHER_BASE)
        report.fail_all("modules", self._too_large, SMALLER)


def convert_adapter(
    config: bytes, weights: Path, base: BaseSignature, new_config: Path, new_weights: Path, largest: int
) -> tuple[Finding, ...]:
    """Write the two files of the LoRA adapter, at most `largest` bytes of weights, and say what was done.

    `config` is one that `is_converted`. With a failure among the findings the new files are worth nothing. Raises
    OSError where a file can be neither read nor written.
    """
    raw = parse_json(config, max_depth=6)
    if has_stacked(raw):
        return convert_stacked(config, weights, base, new_config, new_weights, largest)
    if raw["peft_type"] == "LORA":
        return convert_shared(config, weights, base, new_config, new_weights, largest)
    report = Report()
    settings = read_source_settings(config, report)
    if settings is not None:
        with weights.open("rb", buffering=0) as source:
            outcome = _convert(source, new_weights, settings, base, largest, report)
        if outcome is not None:
            new_config.write_bytes(lora_config(outcome.ranks, settings.base_model, base))
            _say(outcome, KINDS[_kind(settings)], report)
    return tuple(finding for finding in report.findings if finding.level != "pass" or finding.check == "converted")


def _convert(
    source: FileIO, target: Path, settings: LoraSettings, base: BaseSignature, largest: int, report: Report
) -> _Outcome | None:
    algebra, tensors = _ALGEBRA[_kind(settings)], _sorted_tensors(source, settings, base, report)
    if report.failed:
        return None
    modules = {place: _module(source, place, tensors, settings, base) for place in sorted(tensors.modules)}
    _judge_shapes(modules, algebra, report)
    outcome = _Outcome()
    if not report.failed:
        outcome.idle = _judge_values(source, modules, report)
    acting = {place: module for place, module in modules.items() if place not in outcome.idle}
    if acting and not report.failed:
        with target.open("xb", buffering=0) as file:
            output = WeightsFile(file, list(acting), base, largest)
            _convert_modules(acting, algebra, outcome, output, report)
            output.finish()
    _judge(outcome, report)
    return None if report.failed else outcome


def _sorted_tensors(source: FileIO, settings: LoraSettings, base: BaseSignature, report: Report) -> Tensors:
    kind = _kind(settings)
    # AdaLoRA saves a module of which it has dropped every rank as tensors without a value.
    size = os.fstat(source.fileno()).st_size
    read = read_header(source, size, report, limits_of(base, size), empty_allowed=True)
    tensors = sort_tensors(read, _ALGEBRA[kind].PARTS, base, report)
    if kind == "VERA" and read:
        vera.require_projection(settings.raw, tensors.shared, report)
    if not report.failed:
        compare_targets(set(tensors.modules), settings, base, report)
    return tensors


def _judge_shapes(modules: Mapping[ModuleLocation, Module], algebra: Algebra, report: Report) -> None:
    problems = _Problems()
    for place, module in modules.items():
        try:
            module.check_shapes(algebra.shapes(module))
        except Unfit as error:
            problems.note(place, error)
    problems.tell(report)


def _judge_values(source: FileIO, modules: Mapping[ModuleLocation, Module], report: Report) -> list[ModuleLocation]:
    """The modules without effect, as far as a part of zeros tells."""
    problems, scan, idle = _Problems(), Scan(source), list[ModuleLocation]()
    for place, module in modules.items():
        try:
            if scan.has_zeros(module.parts.values()):
                idle.append(place)
        except Unfit as error:
            problems.note(place, error)
    problems.tell(report)
    return idle


def _convert_modules(
    modules: Mapping[ModuleLocation, Module], algebra: Algebra, outcome: _Outcome, output: WeightsFile, report: Report
) -> None:
    """Ends at the first that cannot be converted: each may take seconds."""
    problems = _Problems()
    for place, module in modules.items():
        try:
            change = algebra.change(module)
            outcome.note(place, change)
            if place in outcome.ranks:
                output.write(place, change)
        except Unfit as error:
            problems.note(place, error)
            break
        if outcome.worst > MAX_ERROR:
            break
    problems.tell(report)


def _module(
    source: FileIO, place: ModuleLocation, tensors: Tensors, settings: LoraSettings, base: BaseSignature
) -> Module:
    path, (inputs, outputs) = place.path, base.linears[place.kind]
    widest = max(max(shape) for shape in base.linears.values())
    parts = tensors.modules[place] | tensors.shared
    return Module(source, inputs, outputs, settings.rank_of(path), settings.scaling_of(path), parts, widest)


def _judge(outcome: _Outcome, report: Report) -> None:
    if report.failed:
        return
    if not outcome.ranks:
        message = "the adapter has no effect: it changes no weight"
        report.fail("effect", message, "it was saved before training, or the trained tensors are missing")
    if outcome.worst > MAX_ERROR:
        message = (
            f"the nearest LoRA of rank {MAX_RANK} misses {_percent(outcome.worst)} of the change to "
            f"{outcome.worst_module}; at most {_percent(MAX_ERROR)} is allowed"
        )
        report.fail("converted", message, SMALLER)


def _say(outcome: _Outcome, kind: str, report: Report) -> None:
    ranks = sorted({*outcome.ranks.values()})
    words = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    if outcome.idle:
        idle = [str(place) for place in sorted(outcome.idle)]
        report.warn("effect", f"modules with no effect are left out: {enumerate_some(idle)}")
    if outcome.worst < EXACTLY:
        report.settle("converted", f"converted from {kind}, exactly, at {words}")
        return
    overall = _percent(relative(outcome.lost, outcome.square))
    worst = f"{_percent(outcome.worst)} in {outcome.worst_module}"
    report.warn("converted", f"converted from {kind} by SVD, error {overall}, at {words}; the largest is {worst}")


def _percent(error: float) -> str:
    return f"{100 * error:.2g} %"


def _kind(settings: LoraSettings) -> str:
    return str(settings.raw["peft_type"])
