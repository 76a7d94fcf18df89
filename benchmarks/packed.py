"""Loading half a billion parameters, packed anew and read as packed: python -m benchmarks.packed [--small] [--cuda]

Processor time, user and system together, the least of three rounds in turn, so that other work on the machine counts
little. With --cuda in the form for CUDA, on a card if there is one, else with the host's memory in place of the card's.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.packed_weights import load_decoder
from loraplex.engine.startup.weights_cache import WeightsCache
from loraplex.quant.schemes.choose import choose_cuda_scheme, choose_scheme
from loraplex.quant.storage.cpu_form import cpu_form
from loraplex.quant.storage.cuda_form import cuda_form
from loraplex.quant.weights.online import OnlineQuantization

from .checkpoints import HALF_BILLION, SMALL, base_checkpoint

WAYS: Final = (("none", "none"), ("int4", "int8"), ("int8", "int8"), ("fp8", "none"))
ROUNDS: Final = 3
LIMIT: Final = 8 << 30


def main(arguments: list[str]) -> None:
    folder = base_checkpoint(SMALL if "--small" in arguments else HALF_BILLION)
    cuda = "--cuda" in arguments
    print("| linears | head | packed anew | read | file |\n|---|---|---|---|---|")
    for linears, head in WAYS[cuda:]:  # floats are not kept for CUDA
        with TemporaryDirectory() as kept:
            cache = WeightsCache(Path(kept), LIMIT)
            load = (loading_for_cuda if cuda else loading)(folder, OnlineQuantization(linears, head))
            load(cache)
            rounds = [(seconds(load, None), seconds(load, cache)) for _ in range(ROUNDS)]
            anew, read = (min(column) for column in zip(*rounds, strict=True))
            size = sum(path.stat().st_size for path in Path(kept).iterdir())
        print(f"| {linears} | {head} | {anew:.2f} s | {read:.2f} s | {size / 1e6:.0f} MB |", flush=True)


def loading(folder: Path, online: OnlineQuantization) -> Callable[[WeightsCache | None], str]:
    config, scheme = ModelConfig.from_folder(folder), choose_scheme(torch.device("cpu"), torch.bfloat16)
    return lambda cache: load_decoder(
        DecoderLoader(config, Checkpoint(folder), scheme, torch.bfloat16, online), 1024, cache, cpu_form()
    )[1]


def loading_for_cuda(folder: Path, online: OnlineQuantization) -> Callable[[WeightsCache | None], str]:
    config, device = ModelConfig.from_folder(folder), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scheme = choose_cuda_scheme(device, torch.bfloat16, online=online)

    def load(cache: WeightsCache | None) -> str:
        loader = DecoderLoader(config, Checkpoint(folder), scheme, torch.bfloat16, online, device=device)
        return load_decoder(loader, 1024, cache, cuda_form(device, online, scheme.activations))[1]

    return load


def seconds(load: Callable[[WeightsCache | None], str], cache: WeightsCache | None) -> float:
    begin = time.process_time()
    how = load(cache)
    assert how == ("weights loaded" if cache is None else "packed weights read")
    return time.process_time() - begin


if __name__ == "__main__":
    main(sys.argv[1:])
