"""ModuleTable: which kinds of modules a model has, as adapters name them, and which layers have them. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loraplex.lora.files.manifest import EMBEDDING, HEAD, ModuleKind, StackedLinears

from .feed_forward import ExpertsSpec
from .spec import LayerSpec, ModelSpec, NormSpec


class _Seen(NamedTuple):
    """A module of a layer. Those of one path that differ in this are kinds of their own."""

    path: str
    inputs: int
    """0 of a norm."""
    outputs: int
    has_bias: bool
    adds_one: bool
    beside: tuple[str, ...]
    """Paths of the linears that are multiplied with it as one."""
    gains_from: str | None
    """The path of the linear whose outputs are multiplied into its inputs."""


@dataclass(frozen=True, slots=True)
class ModuleTable:
    modules: dict[str, ModuleKind]
    """By kind."""
    kinds: dict[tuple[int | None, str], str] = field(repr=False)
    """(layer, path within the layer) -> kind; the last norm is at (None, its path)."""


def body_prefix(spec: ModelSpec) -> str:
    """Before the name of every module but the head."""
    return spec.layers_path.partition(".")[0] + "."


def module_table(spec: ModelSpec) -> ModuleTable:
    found: dict[_Seen, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        for seen in _modules(layer):
            found.setdefault(seen, []).append(number)
    ends = _ends(spec)
    names = _names(found, [module.path for module in ends.values()])
    kinds: dict[tuple[int | None, str], str] = {
        (layer, seen.path): names[seen] for seen, layers in found.items() for layer in layers
    }
    if spec.norm is not None:  # OPT's is called as one of each layer
        last = ends.pop(spec.norm.kind)
        kinds[None, spec.norm.path] = last.path if spec.norm.kind in names.values() else spec.norm.kind
        ends[kinds[None, spec.norm.path]] = last
    modules = {
        names[seen]: ModuleKind(
            path=seen.path,
            role="linear" if seen.inputs else "norm",
            inputs=seen.inputs,
            outputs=seen.outputs,
            layers=tuple(layers),
            has_bias=seen.has_bias,
            adds_one=seen.adds_one,
            gains_from=None if seen.gains_from is None else kinds[layers[0], seen.gains_from],
        )
        for seen, layers in found.items()
    }
    return ModuleTable(modules | ends, kinds)


def fixed_modules(spec: ModelSpec) -> dict[str, str]:
    """Paths in the whole model of what it has once and no adapter changes, with what each is, for people."""
    own, given, classifier = spec.embedding, spec.token_inputs, spec.classifier
    heads = [linear.path for linear in classifier.linears if not classifier.owns(f"{linear.path}.")]
    norms = [norm.path for norm in (own.norm, None if given is None else given.norm) if norm is not None]
    tables = [table for table in (own.positions, own.segments) if table is not None]
    return {
        **{start.removesuffix("."): what for start, what in spec.left_out.items()},
        **dict.fromkeys(heads, "a linear between the vector of a text and the head for classes"),
        **({} if classifier.norm is None else {classifier.norm.path: "the norm before the head for classes"}),
        **dict.fromkeys(tables, "a table of positions or segments"),
        **dict.fromkeys(norms, "a norm of the embedding"),
        **({} if given is None else {given.rows.path: "the embedding of each token for each layer"}),
    }


def stacked_linears(spec: ModelSpec) -> tuple[StackedLinears, ...]:
    """What adapters call all experts of a layer."""
    layers: dict[ExpertsSpec, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        if isinstance(layer.feed_forward, ExpertsSpec):
            layers.setdefault(layer.feed_forward, []).append(number)
    return tuple(
        StackedLinears(
            module=own.stacked.module,
            parameter=parameter,
            experts=own.path,
            linears=tuple(linear.path for linear in linears),
            count=own.routing.num_experts,
            inputs=linears[0].inputs,
            outputs=sum(linear.outputs for linear in linears),
            layers=tuple(numbers),
            is_interleaved=own.stacked.is_interleaved and len(linears) > 1,
            inputs_first=own.stacked.is_transposed,
        )
        for own, numbers in layers.items()
        for parameter, linears in (
            (own.stacked.inputs, own.expert.inputs),
            (own.stacked.output, (own.expert.output,)),
        )
    )


def _modules(layer: LayerSpec) -> Iterator[_Seen]:
    feed_forwards = layer.feed_forward.feed_forwards()
    if isinstance(layer.feed_forward, ExpertsSpec):
        feed_forwards = (*feed_forwards, *layer.feed_forward.experts())
    multiplied = {it.output.path: it.inputs[1].path for it in feed_forwards if it.is_gated and len(it.inputs) > 1}
    for group in (*layer.linear_groups(), *layer.expert_groups()):
        beside = tuple(linear.path for linear in group)
        for linear in group:
            gains_from = multiplied.get(linear.path)
            yield _Seen(linear.path, linear.inputs, linear.outputs, False, False, beside, gains_from)
    for norm in layer.norms():
        yield _Seen(norm.path, 0, norm.size, norm.has_bias, norm.adds_one, (), None)


def _ends(spec: ModelSpec) -> dict[str, ModuleKind]:
    """What the model has once."""
    own, head = spec.embedding, spec.head
    prefix = body_prefix(spec)
    ends = {} if head is None else {HEAD: ModuleKind(head.path, "head", own.size, own.vocab_size)}
    ends[EMBEDDING] = ModuleKind(own.path.removeprefix(prefix), "embedding", own.vocab_size, own.size)
    given = None if spec.token_inputs is None else spec.token_inputs.projection
    for linear in (own.projection, None if head is None else head.projection, given):
        if linear is not None:
            path = linear.path.removeprefix(prefix)
            ends[linear.kind] = ModuleKind(path, "linear", linear.inputs, linear.outputs)
    return ends if spec.norm is None else ends | {spec.norm.kind: _last_norm(spec.norm, prefix)}


def _last_norm(norm: NormSpec, prefix: str) -> ModuleKind:
    path = norm.path.removeprefix(prefix)
    return ModuleKind(path, "norm", 0, norm.size, has_bias=norm.has_bias, adds_one=norm.adds_one)


def _names(found: dict[_Seen, list[int]], ends: list[str]) -> dict[_Seen, str]:
    """The last name of the path; the path where others end alike; with a number where one path has several kinds."""
    paths = dict.fromkeys([*(seen.path for seen in found), *ends])
    last = [path.rpartition(".")[2] for path in paths]
    names: dict[_Seen, str] = {}
    used: dict[str, int] = {}
    for seen in found:
        short = seen.path.rpartition(".")[2]
        name = short if last.count(short) == 1 else seen.path
        used[name] = used.get(name, 0) + 1
        names[seen] = name if used[name] == 1 else f"{name}.{used[name]}"
    return names
