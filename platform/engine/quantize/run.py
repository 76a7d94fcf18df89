"""quantize_checkpoint: from a float checkpoint to a quantized one, layer by layer.

In memory at a time: one linear in float32, a quantized form of its layer, what calibration saw at the layer's inputs
(of experts: what all of them read, and the inputs of one), the hidden states of the text, and one shard of the result.
The checkpoint itself stays in its mapped files.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from loraplex.quant.config.config import KEYS
from loraplex.quant.weights.export import exported_tensors, quantization_config
from loraplex.quant.weights.recipe import Recipe, choose_recipe
from loraplex.quant.weights.rounding import check_group_size

from ..model.config import ModelConfig, read_json
from ..model.description.config_fields import DTYPES
from ..model.description.spec import HeadSpec, LinearSpec
from ..model.expected import layer_path
from ..model.folder import FOLDED_DIGEST, FOLDED_SCALES
from ..model.layer_inputs import LayerInput, inputs_of
from ..model.loader import Checkpoint
from ..text.tokenizer import Tokenizer
from .ends import End, embed_tokens
from .float_layers import OnDemand, stored_floats, stored_layer, tensor_names
from .layer import Dtypes, QuantizedLayer, Statistics, quantize_layer, round_layer
from .names import ignored_modules, module_name
from .options import QuantizeOptions
from .plain.forward import LayerForward, LayerTensors, layer_forward
from .report import LayerError, QuantizationReport
from .statistics import LayerStatistics
from .streams import Stream
from .text import Sequences, calibration_sequences
from .writer import CheckpointWriter, check_output, new_checkpoint

Progress = Callable[[int, int], None]
"""Called with the layers done and their number."""


def open_unquantized(folder: Path) -> tuple[ModelConfig, Checkpoint]:
    """ValueError for what is no float checkpoint of a supported architecture."""
    raw = _raw_config(folder)
    said = next((raw[key] for key in KEYS if raw.get(key)), None)
    if said is not None:
        method = said.get("quant_method", "compressed-tensors") if isinstance(said, dict) else said
        raise ValueError(f"{folder} is quantized already ({method}); give the checkpoint it was made from")
    config = ModelConfig.from_folder(folder)
    checkpoint = Checkpoint(folder, config.spec)
    checkpoint.verify(config)
    _require_streams(config, checkpoint)
    if config.why_silent:
        what = config.architecture + (", an encoder," if config.spec.head is None else "")
        raise ValueError(
            f"{what} in {folder} cannot be quantized: {config.why_silent}. Set --quantization as it is served"
        )
    return config, checkpoint


def _require_streams(config: ModelConfig, checkpoint: Checkpoint) -> None:
    spec = config.spec
    if checkpoint.is_stacked:
        raise ValueError(
            f"{config.architecture} in {checkpoint.folder} stores all experts of a layer in one tensor, for which "
            "quantized checkpoints have no names; it is not quantized to a checkpoint here: serve it with "
            "--quantization int8, fp8 or int4, which quantizes its experts as they are loaded"
        )
    if spec.read_by_others() or spec.token_inputs is not None:
        raise ValueError(
            f"{config.architecture} of this config.json has layers that read keys and values of other layers, or "
            "numbers of each token; these are not quantized to a checkpoint here: serve it with --quantization int8, "
            "fp8 or int4, which quantizes its weights as they are loaded"
        )


def quantize_checkpoint(
    folder: Path, output: Path, options: QuantizeOptions, progress: Progress = lambda done, total: None
) -> QuantizationReport:
    """Write the model of `folder` to `output`, and say what it cost.

    ValueError for whatever cannot be: the options, the model, the text, the place. Then nothing is left.
    """
    started = time.perf_counter()
    config, checkpoint = open_unquantized(folder)
    recipe, device = _recipe(options, config), _device(options.device)
    needed = _expected_bytes(config, checkpoint, recipe)
    place = output.resolve()  # a link would be replaced, not what it leads to
    check_output(place, needed)
    sequences = calibration_sequences(
        Tokenizer(folder), options.calibration, options.calibration_tokens, config.max_position_embeddings
    )
    with torch.no_grad(), new_checkpoint(place, needed) as writer:
        layers = _Layers(config, checkpoint, recipe, sequences, device)
        embedding = f"{config.spec.embedding.path}.weight"  # looked at as the streams began
        writer.add({checkpoint.stored_name(embedding): checkpoint.tensor(embedding)})
        errors = layers.write(writer, progress)
        ignored = ignored_modules(config.spec, checkpoint)
        facts = {"quantization_config": quantization_config(recipe, ignored)} | layers.facts
        for name in _outside_layers(config, checkpoint):
            if name != embedding:
                writer.add({checkpoint.stored_name(name): stored_floats(checkpoint, name)})
        for stored, tensor in checkpoint.others():
            writer.add({stored: tensor})
        before, after = layers.perplexities()
        writer.finish(_raw_config(folder) | facts, folder)
    return QuantizationReport(
        scheme=recipe.scheme,
        output=str(output),
        bytes_before=_bytes(checkpoint),
        bytes_after=writer.total_bytes,
        held_out_tokens=sequences.held_out[:, 1:].numel(),
        perplexity_before=before,
        perplexity_after=after,
        layers=errors,
        unseen=layers.unseen,
        seconds=time.perf_counter() - started,
    )


def quantized_bytes(folder: Path, options: QuantizeOptions) -> int:
    """Of the weights that quantize_checkpoint writes. ValueError as its."""
    config, checkpoint = open_unquantized(folder)
    return _expected_bytes(config, checkpoint, _recipe(options, config))


def _outside_layers(config: ModelConfig, checkpoint: Checkpoint) -> list[str]:
    """Names of the ends' tensors, the head's last."""
    head = f"{_head(config).path}."
    names = [name for name in tensor_names(checkpoint) if not name.startswith(f"{config.spec.layers_path}.")]
    return sorted(names, key=lambda name: name.startswith(head))


def _head(config: ModelConfig) -> HeadSpec:
    assert config.spec.head is not None, "open_unquantized refuses models without one"
    return config.spec.head


def _bytes(checkpoint: Checkpoint) -> int:
    served = sum(checkpoint.tensor(name).nbytes for name in tensor_names(checkpoint))
    return served + sum(tensor.nbytes for _, tensor in checkpoint.others())


class _Layers:
    """The layers in order, and the text on its way through them."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        recipe: Recipe,
        sequences: Sequences,
        device: torch.device,
    ) -> None:
        self._config, self._checkpoint, self._recipe, self._device = config, checkpoint, recipe, device
        self.facts: dict[str, str] = {}
        """That config.json of what is written must have, once it is."""
        self.unseen: list[str] = []
        """As of a report."""
        embed = partial(embed_tokens, config.spec, checkpoint, self._embedding())
        self._calibration = Stream(sequences.calibration, embed) if recipe.reads_activations else None
        self._exact, self._quantized = (Stream(sequences.held_out, embed) for _ in range(2))
        self._length = sequences.held_out.shape[1]

    def _embedding(self) -> torch.Tensor:
        return stored_floats(self._checkpoint, f"{self._config.spec.embedding.path}.weight")

    def write(self, writer: CheckpointWriter, progress: Progress) -> list[LayerError]:
        """Quantize and write every layer. The scales of AWQ, where it folds them, go to a file of their own."""
        errors: list[LayerError] = []
        scales: dict[str, torch.Tensor] = {}
        for layer in range(self._config.num_layers):
            progress(layer, self._config.num_layers)
            quantized, error = self._layer(layer)
            errors.append(error)
            writer.add(self._exported(layer, quantized))
            prefix = layer_path(self._config.spec, layer)
            self.unseen += [module_name(self._checkpoint, f"{prefix}{linear}") for linear in quantized.unseen]
            scales |= {f"layers.{layer}.{place}": found.cpu() for place, found in quantized.scales.items()}
        if scales:
            self.facts[FOLDED_DIGEST] = writer.add_file(FOLDED_SCALES, scales)
        progress(self._config.num_layers, self._config.num_layers)
        return errors

    def perplexities(self) -> tuple[float, float]:
        """Before and after, once all layers are written. ValueError where one is no finite number."""
        end = End.read(self._config.spec, self._checkpoint, self._device)
        own = f"{_head(self._config).path}.weight"
        head = self._checkpoint.tensor(own) if own in self._checkpoint else self._embedding()
        before, after = (stream.perplexity(end, head, self._device) for stream in (self._exact, self._quantized))
        for what, perplexity in (("the checkpoint", before), (f"{self._recipe.scheme} of it", after)):
            if not math.isfinite(perplexity):
                raise ValueError(
                    f"{what} answers the held-out text with a perplexity of {perplexity}: its layers compute no finite "
                    "numbers; check that the checkpoint itself answers, in transformers and in float32"
                )
        return before, after

    def _layer(self, layer: int) -> tuple[QuantizedLayer, LayerError]:
        """One layer quantized; the streams are behind it afterwards."""
        tensors, stored = self._read(layer)
        forward = layer_forward(self._config.spec.layers[layer], self._length, self._device)
        inputs = inputs_of(self._config.spec, layer)
        nearest = self._nearest_error(forward, tensors, stored, inputs)
        statistics = self._observed(forward, tensors)
        try:
            quantized = quantize_layer(tensors, stored, statistics, self._recipe, inputs)
        except ValueError as error:
            raise ValueError(f"{layer_path(self._config.spec, layer)}{error}") from None
        read = quantized.tensors()
        chosen = self._exact.error(forward, tensors, read)
        self._exact.advance(forward, tensors)
        self._quantized.advance(forward, read)
        if self._calibration is not None:
            # GPTQ makes up for what the layers before it did; AWQ's scales are those of the model as it was.
            self._calibration.advance(forward, read if self._recipe.scheme == "gptq" else tensors)
        return quantized, LayerError(layer, chosen if nearest is None else nearest, chosen)

    def _observed(self, forward: LayerForward, tensors: LayerTensors) -> Statistics:
        if self._calibration is None:
            return {}
        rows, with_hessian = self._calibration.num_tokens, self._recipe.scheme == "gptq"
        statistics = LayerStatistics(forward, tensors, rows, with_hessian)
        self._calibration.observe(forward, tensors, statistics.add)
        return statistics

    def _nearest_error(
        self, forward: LayerForward, tensors: LayerTensors, stored: Dtypes, inputs: Sequence[LayerInput]
    ) -> float | None:
        """None where rounding to nearest is the recipe. Comes before the recipe, whose copies of the layer it needs."""
        if not self._recipe.reads_activations:
            return None
        return self._exact.error(forward, tensors, round_layer(tensors, stored, self._recipe, inputs).tensors())

    def _read(self, layer: int) -> tuple[LayerTensors, Dtypes]:
        """The layer's tensors in float32, and what each is stored in, by name within the layer. On the CPU each is made
        when it is asked for; a device gets all of them once."""
        prefix = layer_path(self._config.spec, layer)
        stored = stored_layer(self._config.spec, self._checkpoint, layer)
        for name, tensor in stored.items():
            if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
                raise ValueError(f"{prefix}{name} is stored as {tensor.dtype}; only {', '.join(DTYPES)} is quantized")
        makers = {name: partial(tensor.to, self._device, torch.float32) for name, tensor in stored.items()}
        floats: LayerTensors = OnDemand(makers)
        if self._device.type != "cpu":
            floats = dict(floats)
        return floats, {name: tensor.dtype for name, tensor in stored.items()}

    def _exported(self, layer: int, quantized: QuantizedLayer) -> dict[str, torch.Tensor]:
        """By the names of the checkpoint's own files."""
        prefix, checkpoint = layer_path(self._config.spec, layer), self._checkpoint
        tensors = {checkpoint.stored_name(f"{prefix}{name}"): value.cpu() for name, value in quantized.floats.items()}
        for linear, weight in quantized.weights.items():
            tensors |= exported_tensors(module_name(checkpoint, f"{prefix}{linear}"), weight, self._recipe)
        return tensors


def _recipe(options: QuantizeOptions, config: ModelConfig) -> Recipe:
    """ValueError when it does not fit the model's linears."""
    recipe = choose_recipe(
        options.scheme,
        getattr(torch, config.dtype),
        group_size=options.group_size,
        symmetric=options.symmetric,
        fold=options.fold,
        activation_order=options.activation_order,
    )
    if recipe.group_size is not None:
        widths = tuple(dict.fromkeys(linear.inputs for _, linear in _quantized(config)))
        for inputs in widths:
            check_group_size(recipe.group_size, inputs, widths)
    return recipe


def _device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch finds no CUDA device here; leave it out, or use cpu")
    return torch.device(asked)


def _expected_bytes(config: ModelConfig, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Of the quantized checkpoint's weights."""
    linears = {f"{path}{linear.path}.weight": linear for path, linear in _quantized(config)}
    whole = sum(_linear_bytes(linear, recipe) - checkpoint.tensor(name).nbytes for name, linear in linears.items())
    return whole + _bytes(checkpoint)


def _quantized(config: ModelConfig) -> Iterator[tuple[str, LinearSpec]]:
    """The path of its layer, and each linear."""
    for layer in range(config.num_layers):
        for at in inputs_of(config.spec, layer):
            yield from ((layer_path(config.spec, layer), linear) for linear in at.linears)


def _linear_bytes(linear: LinearSpec, recipe: Recipe) -> int:
    bits = 8 if recipe.grid is None else recipe.grid.bits
    groups = linear.outputs * (1 if recipe.group_size is None else linear.inputs // recipe.group_size)
    zeros = 0 if recipe.grid is None or recipe.grid.symmetric else groups * bits // 8
    return linear.outputs * linear.inputs * bits // 8 + groups * recipe.scale_dtype.itemsize + zeros


def _raw_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no config.json: give the folder of a Hugging Face checkpoint")
    return read_json(path)
