"""What Triton needs beside itself on a GPU: it builds the launchers of its kernels in C. No torch."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Final

REMEDY: Final = "Debian and Ubuntu: apt install gcc libc6-dev python3-dev. Else CC names a compiler."


def missing_tools() -> list[str]:
    """In words; empty where all is there."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    missing = [] if any(map(shutil.which, compilers)) else ["a C compiler"]
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return missing if header.exists() else [*missing, "Python's headers"]
