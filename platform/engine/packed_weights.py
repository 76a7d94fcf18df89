"""Loading a decoder, whose linears are packed at the first start and read back as they were at the next."""

import hashlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from typing import Final

from loraplex.quant.kernels.tile import PANEL
from loraplex.quant.kernels.vectors import features
from loraplex.quant.packed import PackedLinear, pack
from loraplex.quant.packed_file import BrokenPackedFile, PackedReader, PackedWriter
from loraplex.quant.restore import restore
from loraplex.quant.scheme import LinearMethod

from .kept import sources_digest
from .model.decoder import Decoder, DecoderLoader
from .model.fingerprint import checkpoint_identity
from .weights_cache import WeightsCache

PACKED_BY: Final = ("quant/**/*.py", "engine/model/*.py")
"""The sources on which the packed weights depend."""

logger = logging.getLogger(__name__)


def load_decoder(loader: DecoderLoader, max_model_len: int, cache: WeightsCache | None) -> tuple[Decoder, str]:
    """The decoder, and in words where its weights came from. ValueError as DecoderLoader.load's."""
    if cache is None:
        return loader.load(max_model_len), "weights loaded"
    name = f"packed-{_key(loader)}"
    decoder = _read(loader, max_model_len, cache, name)
    return (decoder, "packed weights read") if decoder else _pack(loader, max_model_len, cache, name)


def _read(loader: DecoderLoader, max_model_len: int, cache: WeightsCache, name: str) -> Decoder | None:
    """None when there is nothing to read, or something broken."""
    path = cache.use(name)
    try:
        reader = None if path is None else PackedReader(path)
        if reader is None:
            return None
        try:
            return replace(loader, linears=lambda linear, make: restore(reader.linear(linear))).load(max_model_len)
        finally:
            reader.close()
    except FileNotFoundError:
        return None  # another process made room
    except (BrokenPackedFile, OSError) as error:
        logger.warning("the packed weights %s are broken, they are packed again: %s", cache.path(name), error)
        return None


def _pack(loader: DecoderLoader, max_model_len: int, cache: WeightsCache, name: str) -> tuple[Decoder, str]:
    with cache.turn(wait=False) as mine:
        if not mine:
            return loader.load(max_model_len), "weights loaded"  # another process is writing
        cache.path(name).unlink(missing_ok=True)  # a broken one
        unfinished = cache.unfinished(name)
        with FileIO(unfinished, "w") as file:
            keeper = _Keeper(PackedWriter(file), cache.room())
            decoder = replace(loader, linears=keeper.make_and_keep).load(max_model_len)
            keeper.finish()
        if keeper.problem is None:
            unfinished.rename(cache.path(name))
            cache.use(name)
            cache.trim()
            return decoder, "weights loaded, packed ones kept"
        unfinished.unlink()
        logger.warning("the packed weights are not kept, every start packs them anew: %s", keeper.problem)
        return decoder, "weights loaded"


@dataclass(slots=True)
class _Keeper:
    """Writes each linear down as it is made, until there is a problem with that."""

    writer: PackedWriter
    room: int
    problem: str | None = None

    def make_and_keep(self, name: str, make: Callable[[], LinearMethod]) -> LinearMethod:
        method = make()
        self._try(lambda: self._keep(name, pack(method)))
        return method

    def finish(self) -> None:
        self._try(self.writer.finish)

    def _keep(self, name: str, packed: PackedLinear) -> None:
        self.writer.add(name, packed)
        if self.writer.size > self.room:
            self.problem = "they take more than the disk or weights_cache_bytes has room for"

    def _try(self, write: Callable[[], None]) -> None:
        if self.problem is not None:
            return
        try:
            write()
        except OSError as error:
            self.problem = str(error)


def _key(loader: DecoderLoader) -> str:
    """Another one for whatever could make other bytes of the weights."""
    parts = (
        checkpoint_identity(loader.checkpoint.folder),
        str(loader.stored_dtype),
        repr(loader.online),
        f"{features} {PANEL} {sys.byteorder}",
        sources_digest(*PACKED_BY),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
