"""Random damage to a good adapter: it is served or refused in words, never an exception."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loraplex.lora.inspection.inspection import inspect_adapter
from tests.lora.adapters import BASE, encode, frame, make_config, make_tensors, read_manifest, write_adapter

ROUNDS = 1500
ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 70,
    1.5,
    "",
    "q_proj",
    "../x",
    "\u2028",
    [],
    [[]],
    {},
    {"": 0},
    [None] * 3,
]


@pytest.fixture(scope="module")
def weights() -> tuple[dict[str, Any], bytes]:
    """Header and data of a good file."""
    file = encode(make_tensors())
    end = 8 + int.from_bytes(file[:8], "little")
    return json.loads(file[8:end]), file[end:]


def judge(folder: Path, config: bytes, file: bytes) -> None:
    # Writing over a file is ten times as slow as a new one: ext4 brings it to the disk first.
    for path in folder.iterdir():
        path.unlink()
    write_adapter(folder, config, file)
    inspection = inspect_adapter(config, folder / "adapter_model.safetensors", BASE)
    assert (inspection.manifest is None) == bool(inspection.failures())


def test_bytes(tmp_path: Path) -> None:
    draw = random.Random(1)
    config, file = json.dumps(make_config()).encode(), encode(make_tensors())
    for _ in range(ROUNDS):
        judge(tmp_path, config, damage(draw, file, within=1200))
        judge(tmp_path, damage(draw, config, within=len(config)), file)


def damage(draw: random.Random, data: bytes, within: int) -> bytes:
    place, length = draw.randrange(within), draw.choice([0, 1, 1, 1, 4])
    return data[:place] + draw.randbytes(draw.choice([0, 1, 1, 4])) + data[place + length :]


def test_values(tmp_path: Path, weights: tuple[dict[str, Any], bytes]) -> None:
    draw = random.Random(2)
    header, data = weights
    good = encode(make_tensors())
    for _ in range(ROUNDS):
        changed = json.loads(json.dumps(header))
        change(draw, changed)
        judge(tmp_path, json.dumps(make_config()).encode(), frame(json.dumps(changed).encode(), data))
        config = make_config(rank_pattern={"q_proj": 4}, alpha_pattern={"q_proj": 4}, layers_to_transform=[0, 1])
        change(draw, config)
        judge(tmp_path, json.dumps(config).encode(), good)


def change(draw: random.Random, value: Any) -> None:
    """Replace, remove or add one thing somewhere inside a list or an object."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys) if keys else None
        if key is not None and isinstance(value[key], dict | list) and value[key] and draw.random() < 0.7:
            value = value[key]
            continue
        if key is not None and draw.random() < 0.8:
            value[key] = draw.choice(ODD_VALUES)
        elif isinstance(value, dict):
            value[draw.choice(["", "q_proj", "dtype", "use_dora", "x" * 500])] = draw.choice(ODD_VALUES)
        else:
            value.append(draw.choice(ODD_VALUES))
        return


def test_every_tensor_changed_one_way_at_a_time(tmp_path: Path, weights: tuple[dict[str, Any], bytes]) -> None:
    """A wrong shape, dtype or place of any single tensor is refused."""
    header, data = weights
    config = json.dumps(make_config()).encode()
    for name, entry in header.items():
        rows, columns = entry["shape"]
        start, end = entry["data_offsets"]
        for wrong in (
            {"shape": [columns, rows]},
            {"shape": [rows * columns, 1]},
            {"dtype": "F16"},
            {"data_offsets": [start + 4, end + 4]},
            {"data_offsets": [start, end - 4]},
        ):
            changed = header | {name: entry | wrong}
            folder = write_adapter(tmp_path, config, frame(json.dumps(changed).encode(), data))
            with pytest.raises(AssertionError):
                read_manifest(folder)
