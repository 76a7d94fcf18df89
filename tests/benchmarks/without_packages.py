"""A process in which nothing can be imported but torch, triton, numpy, what those need, and this checkout: it runs the
command and then a figure of each part, from the checkout alone even where loraplex is installed. test_gpu.py starts
it."""

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

ALLOWED = {
    *sys.stdlib_module_names, "torch", "torchgen", "functorch", "triton", "numpy", "typing_extensions", "sympy",
    "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "setuptools", "pkg_resources", "nvidia",
    "_distutils_hack", "safetensors", "transformers", "peft", "loraplex", "benchmarks", "tests",
}  # fmt: skip


class RefuseOthers(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.partition(".")[0]
        if name in ALLOWED or name.startswith("_sysconfigdata"):
            return None
        raise ModuleNotFoundError(f"{name} is refused", name=name)


ROOT = Path(__file__).resolve().parents[2]


def forget_installation() -> None:
    """An editable one is a folder of the path or a finder."""
    sys.path[:] = [path for path in sys.path if not (Path(path) / "loraplex").is_dir()]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in f"{finder} {finder.__class__}"]


def refuse_all_but(*distributions: str) -> None:
    """Of what is installed these alone, what they need, and loraplex: all else that is not imported yet is as if it
    were not there."""
    kept, waiting = {"loraplex"}, list(distributions)
    while waiting:
        name = _canonical(waiting.pop())
        if name not in kept:
            kept.add(name)
            try:
                needed = requires(name) or []
            except PackageNotFoundError:
                continue
            waiting += [words for words in needed if "extra ==" not in words]
    for module, owners in packages_distributions().items():
        if not kept.intersection(map(_canonical, owners)):
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]


def _canonical(requirement: str) -> str:
    """Its distribution's name alone."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def main() -> None:
    forget_installation()
    sys.meta_path.insert(0, RefuseOthers())
    from dataclasses import replace

    import torch

    from benchmarks.gpu.__main__ import main as run_command
    from benchmarks.gpu.catalog import parts
    from benchmarks.gpu.figure import Unsupported

    from .tiny import TINY, tiny_stage

    sys.argv = ["benchmarks.gpu", "--quick"]
    assert run_command(lambda: False) == 2
    size = replace(TINY, dtype=torch.float16)
    every = parts(size)
    for figure in (*every["card"], every["attention"][2], every["lora"][0], every["linears"][0], *every["small"][:2]):
        assert figure.measure is not None
        try:
            assert figure.measure(tiny_stage(size)) > 0
        except Unsupported as reason:
            assert figure is every["card"][-1], f"{figure.what}: {reason}"
            print(reason)
    assert every["small"][-1].measure is not None and every["small"][-1].measure(tiny_stage(size)) > 0
    import loraplex

    assert Path(str(loraplex.__file__)).is_relative_to(ROOT), loraplex.__file__
    assert not {"numba", "rich", "msgspec", "fastapi", "sqlalchemy"} & set(sys.modules)


if __name__ == "__main__":
    main()
