"""calibrate_kv: static KV-cache scales with which nothing that the base and the adapters make of a text is clipped.

The engine itself reads the text, each time with a scale for every token and KV head. The static one is the largest of
these, the maximum and no percentile, and a twentieth more: how keys and values of one layer are rounded moves those of
the next.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec
import torch

from ..config import EngineConfig
from ..model.config import ModelConfig, base_signature
from ..protocol import AdapterRef, GenerateRequest, RequestFailed
from ..quantize.text import calibration_sequences
from ..sampling_params import SamplingParams
from ..startup.build import Engine, build_engine, choose_max_model_len
from ..startup.kv_cache_size import EIGHT_BITS, blocks_of
from ..startup.scales_file import ScalesFile
from ..startup.static_scales import DYNAMIC, scale_names
from ..text.tokenizer import Tokenizer
from .llm_engine import LOADING_SECONDS

MARGIN: Final = 1.05
SHORTEST_SEQUENCE: Final = 2
"""The token that texts begin with, and one of the text."""
UNUSED_SCALE: Final = 1.0
"""Of a head whose keys or values were always zero."""

Progress = Callable[[int, int], None]
"""Called with the sequences read and their number, over all readers."""


@runtime_checkable
class ScaledCache(Protocol):
    """That of any device, where each key and value has its own scale."""

    def take_largest_scales(self) -> dict[int, torch.Tensor]:
        """By layer that has keys [2, G] float32: the largest scale of a key and of a value in each head since this was
        asked last."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the text: the base, or one adapter."""

    name: str
    digest: str = ""
    """Empty for the base."""
    folder: str = ""
    invocation_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    scales: dict[int, torch.Tensor]
    """By the number in the model of each layer that has keys [2, G] float32, of keys and of values in each KV head."""
    set_by: dict[int, torch.Tensor]
    """Alike [2, G] int64, which of the readers needed each."""
    readers: tuple[Reader, ...]
    tokens: int
    """Read by each of them."""
    file: ScalesFile


def calibrate_kv(
    config: EngineConfig,
    readers: Sequence[Reader],
    text: Path | None,
    tokens: int,
    progress: Progress = lambda done, total: None,
) -> Calibration:
    """Of the model, the dtypes and the adapters of `config`, over the text or, without one, over text of our own.

    ValueError for a cache without scales, text that is too short, and an adapter that cannot run or gives no numbers.
    """
    if config.kv_cache_dtype not in EIGHT_BITS:
        raise ValueError(
            f"KV-cache scales are for keys and values in 8 bits, and the cache is set to {config.kv_cache_dtype}: "
            f"say which, with --kv-cache-dtype {', '.join(EIGHT_BITS)}"
        )
    model = ModelConfig.from_folder(config.model)
    invocation = max(len(reader.invocation_tokens) for reader in readers)
    longest = _longest(choose_max_model_len(config, model), invocation)
    split = calibration_sequences(Tokenizer(Path(config.model)), text, tokens, longest)
    sequences: list[list[int]] = torch.cat([split.calibration, split.held_out]).tolist()
    engine = build_engine(_one_at_a_time(config, len(sequences[0]) + invocation + 1))
    try:
        needed = list(_read_all(engine, readers, sequences, progress))
    finally:
        engine.close()
    names, numbers = scale_names(model), [number for number, _ in model.spec.attention_layers()]
    scales: dict[int, torch.Tensor] = {}
    set_by: dict[int, torch.Tensor] = {}
    tensors: dict[str, torch.Tensor] = {}
    for layer in needed[0]:
        largest, readers_of_largest = torch.stack([reader[layer] for reader in needed]).max(dim=0)
        of_layer = torch.where(largest == 0, UNUSED_SCALE, largest * MARGIN)
        scales[numbers[layer]], set_by[numbers[layer]] = of_layer, readers_of_largest
        tensors |= {name: of_layer[place] for place, name in enumerate(names[layer].values())}
    file = ScalesFile(
        tensors,
        base_signature(config.model).fingerprint,
        config.kv_cache_dtype,
        tuple(reader.digest for reader in readers if reader.digest),
    )
    return Calibration(scales, set_by, tuple(readers), sum(map(len, sequences)), file)


def _longest(max_model_len: int, invocation: int) -> int:
    """Tokens of a sequence, to which the most invocation tokens and one that is generated are added."""
    longest = max_model_len - 1 - invocation
    if longest < SHORTEST_SEQUENCE:
        after = f" after an adapter's {invocation} invocation tokens" if invocation else ""
        raise ValueError(
            f"max_model_len {max_model_len} leaves {max(0, longest)} tokens of text{after}; {SHORTEST_SEQUENCE} are "
            "needed; give more"
        )
    return longest


def _one_at_a_time(config: EngineConfig, length: int) -> EngineConfig:
    """With a scale for each token, and a cache that holds one sequence of `length`."""
    return msgspec.structs.replace(
        config,
        kv_cache_scales=DYNAMIC,
        kv_scales_file="",
        enable_prefix_caching=False,
        max_num_seqs=1,
        num_kv_blocks=1 + blocks_of(length, config.block_size),
    )


def _read_all(
    engine: Engine, readers: Sequence[Reader], sequences: list[list[int]], progress: Progress
) -> Iterator[dict[int, torch.Tensor]]:
    """The largest scales [2, G] that each reader needs, by layer that has keys."""
    total = len(readers) * len(sequences)
    assert isinstance(engine.cache, ScaledCache)
    engine.cache.take_largest_scales()  # of what the engine tried as it started
    for number, reader in enumerate(readers):
        if reader.digest:
            engine.adapters.register(reader.digest, reader.folder)
        found = []
        for place, sequence in enumerate(sequences):
            progress(number * len(sequences) + place, total)
            _read(engine, reader, sequence)
            found.append(engine.cache.take_largest_scales())
        largest = {layer: torch.stack([scales[layer] for scales in found]).amax(dim=0) for layer in found[0]}
        if not all(bool(scales.isfinite().all()) for scales in largest.values()):
            raise ValueError(f"{reader.name} makes keys or values that are no finite numbers, and no scale fits them")
        yield largest
    progress(total, total)


def _read(engine: Engine, reader: Reader, sequence: list[int]) -> None:
    """Put the sequence's keys and values into the cache. Invocation tokens come after its first token."""
    request = GenerateRequest(
        request_id=reader.name,
        prompt_token_ids=[*sequence[:1], *reader.invocation_tokens, *sequence[1:]],
        params=SamplingParams(temperature=0.0, max_tokens=1),
        adapters=[AdapterRef(reader.digest)] if reader.digest else [],
    )
    engine.core.add(request)
    while engine.core.has_work():
        engine.adapters.poll()
        for message in engine.core.step():
            if isinstance(message, RequestFailed):
                raise ValueError(f"{reader.name} cannot read the text: {message.message}")
        if not engine.core.progressed:
            time.sleep(LOADING_SECONDS)
