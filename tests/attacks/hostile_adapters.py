"""Adapters made to harm: to run code, to eat memory or time, or to be served wrong. The same ones every time.

`python -m tests.attacks.hostile_adapters FOLDER` writes each into a folder of its own, to try on any server.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lora.adapters import encode, frame, make_config, make_tensors, write_adapter

from .hostile_configs import hostile_settings, hostile_texts
from .hostile_conversions import hostile_conversions
from .hostile_files import hostile_weights
from .hostile_headers import DATA, hostile_headers
from .hostile_tensors import hostile_tensors
from .hostile_vectors import hostile_vectors


@dataclass(frozen=True)
class Attack:
    name: str
    reason: str
    """A part of the message that must refuse it, which must be the only one."""
    config: bytes
    weights: bytes


def attacks() -> Iterator[Attack]:
    config, weights = json.dumps(make_config()).encode(), encode(make_tensors())
    for name, reason, file in hostile_weights():
        yield Attack(f"file-{name}", reason, config, file)
    for name, reason, header in hostile_headers():
        yield Attack(f"header-{name}", reason, config, frame(header, bytes(DATA)))
    for name, reason, tensors in hostile_tensors():
        yield Attack(f"tensors-{name}", reason, config, encode(tensors))
    for name, reason, changes, tensors in hostile_vectors():
        yield Attack(f"vectors-{name}", reason, json.dumps(make_config(**changes)).encode(), encode(tensors))
    for name, reason, settings, file in hostile_conversions():
        yield Attack(f"converted-{name}", reason, settings, file)
    for name, reason, text in hostile_texts():
        yield Attack(f"config-{name}", reason, text, weights)
    for name, reason, changes in hostile_settings():
        yield Attack(f"settings-{name}", reason, json.dumps(make_config(**changes)).encode(), weights)


if __name__ == "__main__":
    for number, attack in enumerate(attacks()):
        write_adapter(Path(sys.argv[1]) / f"{number:03}", attack.config, attack.weights)
        print(f"{number:03} {attack.name}: {attack.reason}")
