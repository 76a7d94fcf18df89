"""modules.json and 1_Pooling/config.json, as sentence-transformers writes them."""

import json
from pathlib import Path
from typing import Any


def write_modules(folder: Path, mode: str | None, normalized: bool = False, **pooling: Any) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    if mode is not None:
        modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
        modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
        said = {f"pooling_mode_{name}": name == mode for name in modes} | {"word_embedding_dimension": 64} | pooling
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    if normalized:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
