"""Weights files that are no safetensors file, or not a whole one, and files of other formats in place of the config."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.lora.adapters import encode, frame, make_config, make_tensors

Case = tuple[str, str, bytes]
"""Name, a part of the one message that must refuse it, and the file."""


class _Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('the pickle ran')",)


def pickles() -> Iterator[tuple[str, bytes]]:
    """One per protocol, and as torch.save writes them."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield f"pickle-{protocol}", pickle.dumps(_Exploit(), protocol)
    yield "pickle-of-a-dict", pickle.dumps({"weights": _Exploit()}, 0)
    yield "pickle-by-hand", b"(S'raise SystemExit'\ni__builtin__\nexec\n."
    yield "torch-legacy", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + pickle.dumps(_Exploit(), 2)


def archives() -> Iterator[Case]:
    """Bombs too: a few kilobytes that a careless reader makes gigabytes of."""
    zeros = bytes(4 << 20)
    good = encode(make_tensors())
    yield "torch-zip", "is a zip archive", make_zip({"archive/data.pkl": pickle.dumps(_Exploit())})
    yield "zip-bomb", "is a zip archive", make_zip({f"{index}.bin": zeros for index in range(4)})
    yield "zip-of-zips", "is a zip archive", make_zip({f"{index}.zip": make_zip({"a": zeros}) for index in range(4)})
    yield "zip-of-the-right-file", "is a zip archive", make_zip({"adapter_model.safetensors": good})
    yield "zip-that-leaves-its-folder", "is a zip archive", make_zip({"../../../tmp/owned": b"x"})
    yield "zip-without-files", "is an empty zip archive", make_zip({})
    yield "tar", "is a tar archive", make_tar()
    yield "tar-xz", "is an xz archive", lzma.compress(make_tar())
    yield "tar-bz2", "is a bzip2 archive", bz2.compress(make_tar())
    yield "tar-gz", "is a gzip archive", gzip.compress(make_tar(), mtime=0)
    yield "xz-bomb", "is an xz archive", lzma.compress(zeros)
    yield "7z", "is a 7-Zip archive", b"7z\xbc\xaf\x27\x1c" + bytes(64)
    yield "zstd", "is a Zstandard archive", b"\x28\xb5\x2f\xfd" + bytes(64)


def other_formats() -> Iterator[Case]:
    yield "gguf", "is a GGUF file", b"GGUF\x03\0\0\0" + bytes(64)
    yield "hdf5", "is an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(64)
    yield "npy", "is a NumPy array", make_npy(np.ones(4))
    yield "npy-with-pickle", "is a NumPy array", make_npy(np.array([_Exploit()], object))
    yield "elf", "is a program", b"\x7fELF\x02\x01\x01" + bytes(64)
    yield "exe", "is a program", b"MZ\x90\0" + bytes(64)
    yield "script", "is a script", b"#!/bin/sh\ntouch /tmp/owned\n"
    yield "web-page", "is a web page", b"<!DOCTYPE html><title>404</title>"
    yield "lfs-pointer", "Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def broken_files() -> Iterator[Case]:
    good = encode(make_tensors())
    header_end = 8 + int.from_bytes(good[:8], "little")
    yield "json", "it is a JSON document", b'{"weights": []}' + bytes(64)
    yield "empty", "only 0 bytes", b""
    yield "eight-bytes", "only 8 bytes", good[:8]
    yield "nine-bytes", "only 9 bytes", bytes(9)
    yield "zeros", "does not begin with '{'", bytes(64 << 10)
    yield "header-longer-than-file", "its header claims", (1 << 40).to_bytes(8, "little") + good[8:]
    yield "header-of-all-ones", "its header claims", b"\xff" * 8 + good[8:]
    yield "header-beyond-int64", "its header claims", (1 << 63).to_bytes(8, "little") + good[8:]
    yield "header-big-endian", "its header claims", good[:8][::-1] + good[8:]
    yield "header-one-too-long", "its header claims", frame(good[8:])[:-1]
    yield "pickle-with-a-brace", "its header claims", b"\x80\x04\x95\xff\xff\xff\xff\xff{" + good[9:]
    yield "header-too-short", "it is not JSON", (header_end - 9).to_bytes(8, "little") + good[8:]
    yield "header-empty", "does not begin with '{'", bytes(8) + good[8:]
    yield "header-too-long", "its header has", frame(b'{"a":' + b" " * (300 << 10) + b"1}", bytes(1000))
    yield "metadata-too-long", "its header has", frame(json.dumps({"__metadata__": {"a": "x" * (1 << 20)}}).encode())
    yield "million-empty-tensors", "its header has", frame(_many_entries(1_000_000, _EMPTY))
    yield "20001-tensors", "it holds 20001 tensors; at most", frame(_many_entries(20_001), bytes(16 << 20))
    yield "20000-wrong-entries", "is not described", frame(_many_entries(20_000), bytes(16 << 20))
    yield "3000-empty-tensors", "is empty", frame(_many_entries(3000, _EMPTY), bytes(10 << 20))
    yield "3000-tensors-in-one-place", "overlaps", frame(_many_entries(3000, _SAME), bytes(10 << 20))
    yield "cut-off", "it is cut off", good[:-1]
    yield "cut-off-in-half", "it is cut off", good[: len(good) // 2]
    yield "cut-off-after-the-header", "it is cut off", good[:header_end]
    yield "cut-off-in-the-header", "its header claims", good[: header_end // 2]
    yield "bytes-at-the-end", "belong to no tensor", good + b"x"
    yield "twice", "belong to no tensor", good + good
    yield "zip-at-the-end", "belong to no tensor", good + make_zip({"data.pkl": pickle.dumps(_Exploit())})


def hostile_weights() -> Iterator[Case]:
    for name, data in pickles():
        yield name, "is a Python pickle; only safetensors files", data
    yield from archives()
    yield from other_formats()
    yield from broken_files()


def foreign_configs() -> Iterator[Case]:
    for name, data in pickles():
        yield name, "is a Python pickle, not JSON", data
    yield from (case for case in (*archives(), *other_formats()) if len(case[2]) < 32 << 10)
    yield "safetensors", "is a safetensors file, not JSON", encode(make_tensors())
    yield "yaml", "it is not JSON", b"!!python/object/apply:os.system ['true']"
    yield "python", "it is not JSON", repr(make_config()).encode()


def make_zip(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(zipfile.ZipInfo(name), data)
    return archive.getvalue()


def make_tar() -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        member = tarfile.TarInfo("../../../tmp/owned")
        member.size = 1 << 20
        file.addfile(member, io.BytesIO(bytes(1 << 20)))
    return archive.getvalue()


def make_npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


_EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
_SAME = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


def _many_entries(count: int, entry: str = "1") -> bytes:
    return ("{" + ",".join(f'"{index:x}":{entry}' for index in range(count)) + "}").encode()
