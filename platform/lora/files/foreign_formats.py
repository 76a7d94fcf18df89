"""name_format: what a file that should have been safetensors or JSON is instead, by its first bytes."""

import re
from typing import Final

BEGINNING: Final = 512
"""Bytes that are enough to tell."""

_MAGIC: Final = {
    b"\x80": "a Python pickle",
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"PK\x05\x06": "an empty zip archive",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"\x7fELF": "a program",
    b"MZ": "a program",
    b"#!": "a script",
    b"<": "a web page or XML",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
}
_OLD_PICKLE: Final = re.compile(rb"c[\w.]+\n[\w.]+\n|\((?:[dl]p\d|[SVIX])|[\]})]q\0")
"""Protocols 0 and 1 have no magic number: a global, a tuple or a container and the place where it is remembered."""


def name_format(beginning: bytes) -> str | None:
    """None for what it does not know, as for everything that may begin a JSON object."""
    for magic, name in _MAGIC.items():
        if beginning.startswith(magic):
            return name
    if _OLD_PICKLE.match(beginning):
        return "a Python pickle"
    if beginning[257:264] in (b"ustar\x000", b"ustar  "):
        return "a tar archive"
    # The upper bytes of the length of a header, and the header's first.
    return "a safetensors file" if beginning[5:9] == b"\0\0\0{" else None
