import subprocess
import sys
from pathlib import Path

import loraplex

CODE = """
import importlib, pkgutil, sys
import loraplex.registry as registry
for module in pkgutil.walk_packages(registry.__path__, "loraplex.registry."):
    importlib.import_module(module.name)
print([name for name in ("torch", "transformers", "fastapi", "loraplex.engine", "loraplex.web") if name in sys.modules])
"""


def test_the_registry_needs_neither_torch_nor_the_rest_of_the_house() -> None:
    environment = {"PYTHONPATH": str(Path(loraplex.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
