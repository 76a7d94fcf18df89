"""A LoRA on parameters (PEFT's target_parameters): of all experts of a layer, as one on the linears of each expert; of
a linear's weight, as one on the linear.

Exact: values are copied bit for bit. PEFT has one A [E r, in] and one B [out, r E] for a parameter of E experts: those
of one expert lie together in A, and every E-th column of B is of one. Shapes: E experts, r rank.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..files.config_file import LoraSettings, read_settings
from ..files.manifest import BaseSignature, Finding, StackedLinears, TensorInfo
from ..files.report import Report, enumerate_some, quote
from ..files.safetensors_header import limits_of, read_header
from ..files.strict_json import parse_json
from ..files.tensor_names import OTHER_BASE
from ..files.values import Bits, read_bits
from .kinds import PARAMETERS
from .parameters import as_stored, weights_of, with_plain_patterns
from .write import whole_header

_NAME: Final = re.compile(r"base_model\.model\.(.+?)((?:\.base_layer)*)\.lora_([AB])(?:\.default)?\.weight")
_LITERAL: Final = re.compile(r"[A-Za-z0-9_.]+")
_SIGN: Final = {"F32": 0x7FFFFFFF, "F16": 0x7FFF, "BF16": 0x7FFF}
"""All bits of a value but its sign."""
_STRAIGHT_SINCE: Final = (0, 19)
"""PEFT before this version took the inputs of a parameter [experts, outputs, inputs] for its outputs."""


class Pair(NamedTuple):
    """A and B of one parameter of a layer."""

    layer: int
    stacked: StackedLinears
    a: TensorInfo
    b: TensorInfo
    is_swapped: bool
    """A and B have changed places: PEFT took the inputs for the outputs."""

    @property
    def rank(self) -> int:
        return self.a.shape[0] // self.stacked.count

    def path(self, base: BaseSignature) -> str:
        """Of the parameter, as PEFT matches names against it."""
        return f"{base.prefix}{base.layers_path}.{self.layer}.{self.stacked.name}"


class Part(NamedTuple):
    """What one linear of an expert gets."""

    within: str
    """Its path within a layer."""
    path: str
    """In the whole model."""
    a: Bits
    b: Bits
    dtypes: tuple[str, str]

    @property
    def acts(self) -> bool:
        pairs = zip((self.a, self.b), self.dtypes, strict=True)
        return all(bool((bits & bits.dtype.type(_SIGN[dtype])).any()) for bits, dtype in pairs)

    def stored(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of its tensors, in their order."""
        sides = zip("AB", (self.a, self.b), self.dtypes, strict=True)
        return [(f"base_model.model.{self.path}.lora_{side}.weight", dtype, bits.shape) for side, bits, dtype in sides]


@dataclass(frozen=True, slots=True)
class _Sorted:
    pairs: list[Pair]
    others: list[TensorInfo]
    """All that is no part of a pair."""


def convert_stacked(
    config: bytes, weights: Path, base: BaseSignature, new_config: Path, new_weights: Path, largest: int
) -> tuple[Finding, ...]:
    """As convert_adapter, of a configuration that `has_stacked`."""
    report, raw = Report(), with_plain_patterns(parse_json(config, max_depth=6))
    settings = _settings(raw, base, report)
    if settings is None:
        return tuple(report.findings)
    with weights.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        tensors = read_header(source, size, report, limits_of(base, size))
        found = _sort(tensors, base, _version(raw), report)
        if not report.failed:
            _judge_targets(raw[PARAMETERS], found.pairs, base, report)
            _judge_ranks(found.pairs, settings, base, report)
        if not report.failed:
            ranks = _write(source, found, new_weights, base, largest, report)
            if not report.failed:
                new_config.write_bytes(_config(raw, settings, found, ranks, base))
    return tuple(finding for finding in report.findings if finding.level != "pass" or finding.check == "converted")


def _settings(raw: Mapping[str, Any], base: BaseSignature, report: Report) -> LoraSettings | None:
    """Of the adapter without its parameters: ranks and scalings."""
    names = raw[PARAMETERS]
    if not isinstance(names, list) or not all(isinstance(name, str) and _LITERAL.fullmatch(name) for name in names):
        message = f"{PARAMETERS} is {quote(names)}; it must be a list of names without patterns"
        report.fail("targets", message, "name them as mlp.experts.down_proj")
        return None
    if raw.get("use_dora") or raw.get("lora_bias"):
        report.fail(
            "features", f"use_dora and lora_bias are not there for {PARAMETERS}", "save the adapter again with PEFT"
        )
        return None
    targets = raw.get("target_modules") or ["experts"]
    plain = {name: value for name, value in raw.items() if name != PARAMETERS} | {"target_modules": targets}
    return read_settings(json.dumps(plain).encode(), report, base)


def _version(raw: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Of the PEFT that wrote it; None: it does not say."""
    said = re.match(r"(\d+)\.(\d+)", str(raw.get("peft_version") or ""))
    return None if said is None else (int(said[1]), int(said[2]))


def _sort(
    tensors: tuple[TensorInfo, ...], base: BaseSignature, version: tuple[int, ...] | None, report: Report
) -> _Sorted:
    places = {
        f"{prefix}{base.layers_path}.{layer}.{stacked.module}": (layer, stacked)
        for stacked in base.stacked
        for layer in stacked.layers
        for prefix in (base.prefix, *base.name_prefixes)
    }
    others, found = list[TensorInfo](), defaultdict[tuple[str, str], dict[str, TensorInfo]](dict)
    for tensor in tensors:
        match = _NAME.fullmatch(tensor.name)
        if match is None or match[1] not in places:
            others.append(tensor if match is None else _as_stored(tensor, match[1], base))
        else:
            found[match[1], match[2]][match[3]] = tensor
    pairs, problems = list[Pair](), list[str]()
    for (module, _), sides in found.items():
        layer = places[module][0]
        pair = _pair(layer, sides, [one for one in base.stacked if layer in one.layers], version)
        if isinstance(pair, str):
            problems.append(f"{quote(module)} of layer {layer}: {pair}")
        else:
            pairs.append(pair)
    report.fail_all("modules", problems, OTHER_BASE)
    counts = Counter((pair.layer, pair.stacked.name) for pair in pairs)
    twice = [f"{name} of layer {layer} has two LoRAs" for (layer, name), count in counts.items() if count > 1]
    report.fail_all("modules", twice, "save the adapter again")
    return _Sorted(pairs, others)


def _as_stored(tensor: TensorInfo, module: str, base: BaseSignature) -> TensorInfo:
    return replace(tensor, name=tensor.name.replace(module, as_stored(module, base), 1))


def _pair(
    layer: int, sides: Mapping[str, TensorInfo], choices: list[StackedLinears], version: tuple[int, ...] | None
) -> Pair | str:
    """The parameter that these are of, by their shapes; or in words why it is none."""
    if len(sides) != 2:
        return f"it has no lora_{'B' if 'A' in sides else 'A'}"
    a, b = sides["A"], sides["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return f"lora_A is {list(a.shape)} and lora_B {list(b.shape)}"
    ends = a.shape[1], b.shape[0]
    for stacked in choices:
        straight = ends == (stacked.inputs, stacked.outputs)
        if straight or (ends == (stacked.outputs, stacked.inputs) and not stacked.inputs_first):
            if a.shape[0] % stacked.count or a.shape[0] == 0:
                return f"lora_A has {a.shape[0]} rows, which {stacked.count} experts do not share evenly"
            if stacked.inputs == stacked.outputs and not stacked.inputs_first:
                if version is None:
                    return "adapter_config.json must say the peft_version, which tells lora_A from lora_B here"
                straight = version >= _STRAIGHT_SINCE
            return Pair(layer, stacked, a, b, not straight)
    wanted = " or ".join(f"{one.inputs} to {one.outputs} ({one.name})" for one in choices)
    return f"it is from {ends[0]} to {ends[1]} numbers, and parameters of the base's experts are from {wanted}"


def _judge_targets(names: list[str], pairs: list[Pair], base: BaseSignature, report: Report) -> None:
    """PEFT would leave a targeted parameter without tensors at its first, perhaps random, values."""
    named, unknown = set[tuple[int, str]](), list[str]()
    weights = weights_of(names, base)
    for name in (name for name in names if name not in weights):
        hit = {
            (layer, one.name)
            for one in base.stacked
            for layer in one.layers
            if f".{base.prefix}{base.layers_path}.{layer}.{one.name}".endswith(f".{name}")
        }
        named |= hit
        if not hit:
            unknown.append(quote(name))
    present = {(pair.layer, pair.stacked.name) for pair in pairs}
    report.fail_all(
        "targets",
        [f"{PARAMETERS} names {one}, which is no parameter of the base's experts or linears" for one in unknown],
    )
    for places, words, remedy in (
        (named - present, f"{PARAMETERS} names parameters without tensors", "save the whole adapter again"),
        (present - named, f"{PARAMETERS} does not name parameters with tensors", f"add them to {PARAMETERS}"),
    ):
        if places:
            told = [f"{name} of layer {layer}" for layer, name in sorted(places)]
            report.fail("targets", f"{words}: {enumerate_some(told)}", remedy)


def _judge_ranks(pairs: list[Pair], settings: LoraSettings, base: BaseSignature, report: Report) -> None:
    problems = [
        f"{pair.stacked.name} of layer {pair.layer} has rank {pair.rank}, adapter_config.json says {rank}"
        for pair in pairs
        if pair.rank != (rank := settings.rank_of(pair.path(base)))
    ]
    report.fail_all("modules", problems, "save the adapter again")


def _parts(source: FileIO, pair: Pair, base: BaseSignature) -> Iterator[Part]:
    stacked, rank = pair.stacked, pair.rank
    a, b = read_bits(source, pair.a), read_bits(source, pair.b)
    for expert in range(stacked.count):
        down, up = a[expert * rank : (expert + 1) * rank], b[:, expert :: stacked.count]
        dtypes = pair.a.dtype, pair.b.dtype
        if pair.is_swapped:
            down, up, dtypes = up.T, down.T, dtypes[::-1]
        for place, linear in enumerate(stacked.linears):
            own = up[_rows(stacked, place)]
            within, path = stacked.path_within(expert, linear), stacked.path_of(base, pair.layer, expert, linear)
            yield Part(within, path, down, own, dtypes)


def _rows(stacked: StackedLinears, place: int) -> slice:
    count = len(stacked.linears)
    size = stacked.outputs // count
    return slice(place, None, count) if stacked.is_interleaved else slice(place * size, (place + 1) * size)


def _write(
    source: FileIO, found: _Sorted, target: Path, base: BaseSignature, largest: int, report: Report
) -> dict[str, int]:
    """The new file. The path of each linear in it, and its rank: those that act in some layer, in all layers, as there
    are tens of thousands of names of single layers."""
    acting = {part.within for pair in found.pairs for part in _parts(source, pair, base) if part.acts}
    ranks, stored = dict[str, int](), [(tensor.name, tensor.dtype, tensor.shape) for tensor in found.others]
    for pair in found.pairs:
        for part in _parts(source, pair, base):
            if part.within in acting:
                ranks[part.path] = len(part.a)
                stored += part.stored()
    header, size = whole_header(stored)
    if len(header) + size > largest:
        report.fail("converted", f"the LoRA of each expert would have more than {largest:,} bytes", "free some space")
        return ranks
    with target.open("xb") as file:
        file.write(header)
        for tensor in found.others:
            file.write(read_bits(source, tensor).tobytes())
        for pair in found.pairs:
            for part in _parts(source, pair, base):
                if part.within in acting:
                    file.write(part.a.tobytes())
                    file.write(part.b.tobytes())
    idle = sum(len(pair.stacked.linears) * pair.stacked.count for pair in found.pairs) - len(ranks)
    if not found.pairs:
        report.settle("converted", f"{PARAMETERS} became a LoRA on linears, exactly")
        return ranks
    if not ranks:
        report.fail("effect", "the adapter's experts have no effect", "it was saved before training")
    elif idle:
        report.warn("effect", f"{idle} linears of experts without effect in any layer are left out")
    report.settle("converted", f"{PARAMETERS} became a LoRA on each of {len(ranks)} linears of experts, exactly")
    return ranks


def _config(
    raw: Mapping[str, Any], settings: LoraSettings, found: _Sorted, ranks: Mapping[str, int], base: BaseSignature
) -> bytes:
    """adapter_config.json with linears of experts by their names: whole ones where layers differ in what acts, in its
    rank or in its alpha."""
    targets = raw.get("target_modules") or []
    named, own = set[str](), dict[str, tuple[int, float]]()
    for within, acting in _acting(found.pairs, settings, ranks, base).items():
        named |= {within} if len(acting) == len(base.kinds_in_layers[within]) else set(acting)
        own |= {within: next(iter(acting.values()))} if len(set(acting.values())) == 1 else acting
    for weights in weights_of(raw[PARAMETERS], base).values():
        named |= set(weights)
        own |= {path: (settings.rank_of(weight), settings.alpha_of(weight)) for path, weight in weights.items()}
    if not (settings.rank_pattern or settings.alpha_pattern):
        own = {name: both for name, both in own.items() if both != (settings.rank, settings.alpha)}
    changed = {
        "target_modules": targets if isinstance(targets, str) else sorted({*targets, *named}),
        # Those of modules first: patterns of parameters say nothing of the modules that these become.
        "rank_pattern": {name: rank for name, (rank, _) in own.items()} | (raw.get("rank_pattern") or {}),
        "alpha_pattern": {name: alpha for name, (_, alpha) in own.items()} | (raw.get("alpha_pattern") or {}),
    }
    return json.dumps({name: value for name, value in raw.items() if name != PARAMETERS} | changed).encode()


def _acting(
    pairs: list[Pair], settings: LoraSettings, ranks: Mapping[str, int], base: BaseSignature
) -> dict[str, dict[str, tuple[int, float]]]:
    """Path within a layer of each linear of an expert in the file -> path in the whole model -> rank and alpha."""
    found = defaultdict[str, dict[str, tuple[int, float]]](dict)
    for pair in pairs:
        both = pair.rank, settings.alpha_of(pair.path(base))
        for expert, linear in pair.stacked.every():
            path = pair.stacked.path_of(base, pair.layer, expert, linear)
            if path in ranks:
                found[pair.stacked.path_within(expert, linear)][path] = both
    return found
