"""Writes and amends the JSON files beside the weights."""

import json
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def amend_json(path: Path, **changes: object) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)
