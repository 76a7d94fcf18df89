"""A LoRA whose experts have one tensor of three dimensions, as the LoRA on each expert that says the same.

Exact: values are copied bit for bit. Tinker writes such files, and SGLang reads them: A [E, r, in] and B [E, out, r] of
gate_proj, up_proj or down_proj (w1, w3, w2) at `experts`, without an expert's number. A tensor with 1 in the place of E
is shared by all experts: of a "shared outer" LoRA, A of gate and up and B of down. Shapes: E experts, r rank.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..files.manifest import BaseSignature, Finding, StackedLinears, TensorInfo
from ..files.report import Report, quote
from ..files.safetensors_header import limits_of, read_header
from ..files.strict_json import parse_json
from ..files.tensor_names import OTHER_BASE
from ..files.values import read_bits, read_bytes
from .write import whole_header

_MARK: Final = re.compile(rb"\.experts\.[A-Za-z]\w*\.lora_[AB]\.")
_NAME: Final = re.compile(r"base_model\.model\.(.+)\.([A-Za-z]\w*)\.lora_([AB])(?:\.default)?\.weight")
_SHORT: Final = ("w1", "w3", "w2")
"""Of the linears of a gated feed-forward, in their order: gate, up, down."""


class Stack(NamedTuple):
    """A tensor of all experts of a layer."""

    tensor: TensorInfo
    stacked: StackedLinears
    start: str
    """Of its names: what stands before the expert's number."""
    linear: str
    side: str

    def name(self, expert: int) -> str:
        return f"base_model.model.{self.start}.{expert}.{self.linear}.lora_{self.side}.weight"


def may_be_shared(weights: Path, base: BaseSignature) -> bool:
    """Whether a file's header, which nobody has judged yet, names tensors of all experts."""
    if not base.stacked:
        return False
    with weights.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(read_bytes(file, min(size, 8)), "little")
        return _MARK.search(read_bytes(file, min(length, max(0, size - 8), limits_of(base, size).header))) is not None


def convert_shared(
    config: bytes, weights: Path, base: BaseSignature, new_config: Path, new_weights: Path, largest: int
) -> tuple[Finding, ...]:
    """As convert_adapter, of a file that `may_be_shared`."""
    report, raw = Report(), parse_json(config, max_depth=6)
    with weights.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        tensors = read_header(source, size, report, limits_of(base, size))
        stacks, others = _sort(tensors, base, report)
        if not report.failed:
            _write(source, stacks, others, new_weights, largest, report)
    if not report.failed:
        new_config.write_bytes(json.dumps(raw | {"target_modules": _targets(raw, stacks)}).encode())
    return tuple(finding for finding in report.findings if finding.level != "pass" or finding.check == "converted")


def _sort(tensors: tuple[TensorInfo, ...], base: BaseSignature, report: Report) -> tuple[list[Stack], list[TensorInfo]]:
    """Those of all experts, and all others."""
    places, linears = _places(base), _linears(base)
    stacks, others, problems = list[Stack](), list[TensorInfo](), list[str]()
    for tensor in tensors:
        match = _NAME.fullmatch(tensor.name)
        if match is None or match[1] not in places:
            others.append(tensor)
            continue
        found, count = linears.get((places[match[1]], match[2])), len(tensor.shape) == 3 and tensor.shape[0]
        if found is None:
            problems.append(f"{quote(tensor.name)}: experts have {', '.join(_known(linears))} here, and no {match[2]}")
        elif count not in (1, found[0].count):
            expected = f"[1 or {found[0].count}, {'rank, inputs' if match[3] == 'A' else 'outputs, rank'}]"
            problems.append(f"{quote(tensor.name)} is {list(tensor.shape)}, not {expected}")
        else:
            stacks.append(Stack(tensor, found[0], match[1], found[1], match[3]))
    report.fail_all("modules", problems, OTHER_BASE)
    names = [stack.name(expert) for stack in stacks for expert in range(stack.stacked.count)]
    twice = len({*names, *(tensor.name for tensor in others)}) < len(names) + len(others)
    if twice:
        report.fail("modules", "the file has two tensors for the same of an expert", "save the adapter again")
    return stacks, others


def _places(base: BaseSignature) -> dict[str, int]:
    """What stands before an expert's number -> its layer."""
    return {
        f"{prefix}{base.layers_path}.{layer}.{stacked.experts}": layer
        for stacked in base.stacked
        for layer in stacked.layers
        for prefix in (base.prefix, *base.name_prefixes)
    }


def _linears(base: BaseSignature) -> dict[tuple[int, str], tuple[StackedLinears, str]]:
    """(layer, linear by its own name or the short one) -> where it is, and its own name."""
    found = dict[tuple[int, str], tuple[StackedLinears, str]]()
    for layer in {layer for stacked in base.stacked for layer in stacked.layers}:
        own = [(stacked, linear) for stacked in base.stacked if layer in stacked.layers for linear in stacked.linears]
        if len(own) == len(_SHORT):
            found |= {(layer, short): one for short, one in zip(_SHORT, own, strict=True)}
        found |= {(layer, one[1]): one for one in own}
    return found


def _known(linears: Mapping[tuple[int, str], object]) -> list[str]:
    return list(dict.fromkeys(name for _, name in linears))


def _write(
    source: FileIO, stacks: list[Stack], others: list[TensorInfo], target: Path, largest: int, report: Report
) -> None:
    stored = [(tensor.name, tensor.dtype, tensor.shape) for tensor in others]
    stored += [
        (stack.name(expert), stack.tensor.dtype, stack.tensor.shape[1:])
        for stack in stacks
        for expert in range(stack.stacked.count)
    ]
    header, size = whole_header(stored)
    if len(header) + size > largest:
        report.fail("converted", f"the LoRA of each expert would have more than {largest:,} bytes", "free some space")
        return
    with target.open("xb") as file:
        file.write(header)
        for tensor in others:
            file.write(read_bits(source, tensor).tobytes())
        for stack in stacks:
            for values in _of_experts(source, stack):
                file.write(values)
    shared = sum(stack.tensor.shape[0] == 1 for stack in stacks)
    words = f"{len(stacks)} tensors of all experts, {shared} of them shared by these, became tensors of each, exactly"
    report.settle("converted", words)


def _of_experts(source: FileIO, stack: Stack) -> Iterator[bytes]:
    values = read_bits(source, stack.tensor)
    return (values[expert if len(values) > 1 else 0].tobytes() for expert in range(stack.stacked.count))


def _targets(raw: Mapping[str, Any], stacks: list[Stack]) -> object:
    """target_modules, with linears of experts by the base's names."""
    targets = raw.get("target_modules")
    if not isinstance(targets, list):
        return targets
    own = {f"{stack.stacked.experts.rpartition('.')[2]}.{expert}.{stack.linear}"
           for stack in stacks for expert in range(stack.stacked.count)}  # fmt: skip
    return sorted({name for name in targets if name not in ("experts", *_SHORT)} | own, key=str)
