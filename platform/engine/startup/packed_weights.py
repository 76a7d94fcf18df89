"""Loading a decoder, whose linears are packed at the first start and read back as they were at the next."""

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from io import FileIO
from typing import Final

import torch

from loraplex.quant.linears.packed import PackedForm, PackedLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.storage.packed_file import BrokenPackedFile, PackedReader, PackedWriter

from ..cache_paths import sources_digest
from ..model.decoder import Decoder
from ..model.decoder_loader import DecoderLoader
from ..model.identity.fingerprint import checkpoint_identity, put_there
from .weights_cache import WeightsCache, entry_name

PACKED_BY: Final = ("quant/**/*.py", "engine/model/*.py", "engine/model/families/**/*.py", "engine/model/experts/*.py")
"""The sources on which the packed weights depend."""
BUSY: Final = "another process is writing"

logger = logging.getLogger(__name__)


def load_decoder(
    loader: DecoderLoader, max_model_len: int, cache: WeightsCache | None, form: PackedForm
) -> tuple[Decoder, str]:
    """The decoder, and in words where its weights came from. ValueError as DecoderLoader.load's."""
    if cache is None:
        return loader.load(max_model_len), "weights loaded"
    kept = _Kept(cache, entry_name("packed", _identity(loader, form)), form)
    decoder = _read(loader, max_model_len, kept)
    return (decoder, "packed weights read") if decoder else _pack(loader, max_model_len, kept)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The entry of one decoder."""

    cache: WeightsCache
    name: str
    form: PackedForm


def _read(loader: DecoderLoader, max_model_len: int, kept: _Kept) -> Decoder | None:
    """None when there is nothing to read, or something broken."""
    cache, name, form = kept.cache, kept.name, kept.form
    path = cache.use(name)
    try:
        reader = None if path is None else PackedReader(path, form.land)
        if reader is None:
            return None

        def read(linear: str, make: Callable[[], LinearMethod]) -> LinearMethod:
            packed = reader.linear(linear)
            return make() if packed is None else form.restore(packed)

        try:
            return replace(loader, linears=read).load(max_model_len)
        finally:
            reader.close()
    except FileNotFoundError:
        return None  # another process made room
    except (BrokenPackedFile, OSError) as error:
        logger.warning("the packed weights %s are broken, they are packed again: %s", cache.path(name), error)
        return None


def _pack(loader: DecoderLoader, max_model_len: int, kept: _Kept) -> tuple[Decoder, str]:
    """Whatever the cache's folder refuses costs the copy, not the start."""
    with ExitStack() as stack:
        keeper = _Keeper(kept, stack)
        decoder = replace(loader, linears=keeper.make_and_keep).load(max_model_len)
        keeper.finish()
    if keeper.complete:
        return decoder, "weights loaded, packed ones kept"
    if keeper.problem not in (None, BUSY):
        logger.warning("the packed weights are not kept, every start packs them anew: %s", keeper.problem)
    return decoder, "weights loaded"


class _Keeper:
    """Writes each linear down as it is made, until there is a problem with that."""

    def __init__(self, kept: _Kept, stack: ExitStack) -> None:
        """`stack`: what it holds open until the decoder is loaded, the cache's turn first."""
        self.problem: str | None = None
        self.complete = False
        self._cache, self._name, self._form, self._stack = kept.cache, kept.name, kept.form, stack
        self._writer: PackedWriter | None = None
        """None until there is something to write."""

    def make_and_keep(self, name: str, make: Callable[[], LinearMethod]) -> LinearMethod:
        method = make()
        packed = self._form.pack(method)
        if packed is not None:
            self._try(lambda: self._keep(name, packed))
        return method

    def finish(self) -> None:
        writer = self._writer
        if writer is not None:
            self._try(lambda: self._finish(writer))

    def _begin(self) -> PackedWriter | None:
        if not self._stack.enter_context(self._cache.turn(wait=False)):
            self.problem = BUSY
            return None
        self._cache.path(self._name).unlink(missing_ok=True)  # a broken one
        self._file = FileIO(self._cache.unfinished(self._name), "w")
        self._stack.callback(self._drop)
        self._writer, self._allowance = PackedWriter(self._file), self._cache.allowance()
        return self._writer

    def _keep(self, name: str, packed: PackedLinear) -> None:
        writer = self._writer or self._begin()
        if writer is None:
            return
        if writer.size + packed.nbytes > self._allowance or not self._cache.make_room(packed.nbytes):
            self.problem = "they take more than the disk or weights_cache_bytes has room for"
            return
        writer.add(name, packed)

    def _finish(self, writer: PackedWriter) -> None:
        writer.finish()
        self._file.close()
        self._cache.unfinished(self._name).rename(self._cache.path(self._name))
        self._cache.use(self._name)
        self._cache.trim()
        self.complete = True

    def _drop(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):  # then the next turn does
            self._cache.unfinished(self._name).unlink(missing_ok=True)

    def _try(self, write: Callable[[], None]) -> None:
        if self.problem is not None:
            return
        try:
            write()
        except OSError as error:
            self.problem = str(error)


def _identity(loader: DecoderLoader, form: PackedForm) -> str:
    """Another one for whatever could make other bytes of the weights."""
    parts = (
        checkpoint_identity(loader.checkpoint.folder),
        put_there(loader.checkpoint.folder),
        str(loader.stored_dtype),
        repr(loader.online),
        form.identity,
        f"torch {torch.__version__}",  # rounds what is quantized at load
        sources_digest(*PACKED_BY),
    )
    return "\0".join(parts)
