"""Changes of more rank than can be served: the nearest LoRA, and its error as it is reported, in float64."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loraplex.lora.conversion import factors
from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.files.manifest import Finding
from tests.lora.signatures import llama_signature

from .adapters import encode, read_manifest

SIZE = 640
WIDE = llama_signature("wide", 1, {"q_proj": (SIZE, SIZE)}, "acme/wide", vocab_size=16, hidden_size=SIZE)
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj."


def convert(folder: Path, kind: str, tensors: dict[str, NDArray[np.float64]], **config: Any) -> tuple[Finding, ...]:
    """Converts to `folder`, whose name is free."""
    folder.mkdir()
    single = {PREFIX + name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    (folder / "old").write_bytes(encode(single))
    settings = {"peft_type": kind, "target_modules": ["q_proj"], "base_model_name_or_path": "acme/wide"} | config
    files = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    return convert_adapter(json.dumps(settings).encode(), folder / "old", WIDE, *files, 1 << 30)


def delta(folder: Path) -> NDArray[np.float64]:
    """What PEFT would add to the weight."""
    (module,) = read_manifest(folder, WIDE).modules
    data = (folder / "adapter_model.safetensors").read_bytes()
    a, b = (np.frombuffer(data[one.start : one.end], np.float32).reshape(one.shape) for one in (module.a, module.b))
    return module.scaling * (b.astype(np.float64) @ a.astype(np.float64))


def falling(rows: int, columns: int, ratio: float, seed: int) -> NDArray[np.float64]:
    """A random matrix whose singular values fall by `ratio`."""
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.normal(size=(side, side)))[0] for side in (rows, columns))
    return np.asarray((left * ratio ** np.arange(rows)) @ right[:rows])


def test_a_kronecker_product_of_full_rank_keeps_its_largest_values(tmp_path: Path) -> None:
    one, two = falling(20, 20, 0.88, 1), falling(32, 32, 0.85, 2)
    (converted,) = convert(tmp_path / "new", "LOKR", {"lokr_w1": one, "lokr_w2": two}, r=8, alpha=4)
    exact = np.kron(one.astype(np.float32), two.astype(np.float32)) * 0.5
    values = np.linalg.svd(exact, compute_uv=False)
    best = float(np.linalg.norm(values[512:]) / np.linalg.norm(values))
    assert 1e-5 < best < 0.01
    assert np.linalg.norm(delta(tmp_path / "new") - exact) / np.linalg.norm(exact) == pytest.approx(best, rel=1e-3)
    words = f"converted from LoKr by SVD, error {100 * best:.2g} %, at rank 512; the largest is {100 * best:.2g} % in"
    assert (converted.level, converted.message) == ("warn", f"{words} q_proj of layer 0")


def test_a_hadamard_product_of_full_rank_keeps_its_largest_values(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    weights = 0.8 ** np.arange(24)
    tensors = {f"hada_w{side}_a": random.normal(size=(SIZE, 24)) * weights for side in (1, 2)}
    tensors |= {f"hada_w{side}_b": random.normal(size=(24, SIZE)) for side in (1, 2)}
    (converted,) = convert(tmp_path / "new", "LOHA", tensors, r=24, alpha=24)
    single = {name: tensor.astype(np.float32).astype(np.float64) for name, tensor in tensors.items()}
    exact = (single["hada_w1_a"] @ single["hada_w1_b"]) * (single["hada_w2_a"] @ single["hada_w2_b"])
    error = float(np.linalg.norm(delta(tmp_path / "new") - exact) / np.linalg.norm(exact))
    values = np.linalg.svd(exact, compute_uv=False)
    assert error == pytest.approx(float(np.linalg.norm(values[512:]) / np.linalg.norm(values)), rel=1e-3)
    assert converted.level == "warn"
    assert f"error {100 * error:.2g} %, at rank 512" in converted.message


def test_what_would_be_too_far_away_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    tensors = {"lokr_w1": random.normal(size=(20, 20)), "lokr_w2": random.normal(size=(32, 32))}
    (refused,) = convert(tmp_path / "new", "LOKR", tensors, r=8, alpha=8)
    assert refused.level == "fail"
    assert "the nearest LoRA of rank 512 misses" in refused.message
    assert "at most 1 % is allowed" in refused.message
    assert refused.remedy is not None
    assert not (tmp_path / "new" / "adapter_config.json").exists()


def test_no_matrix_of_the_linears_size_is_decomposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    svd = np.linalg.svd
    monkeypatch.setattr(
        factors.np.linalg, "svd", lambda matrix, **settings: sizes.append(matrix.shape) or svd(matrix, **settings)
    )
    random = np.random.default_rng(5)
    tensors = {"lokr_w1": random.normal(size=(8, 8)), "lokr_w2_a": random.normal(size=(80, 3))}
    convert(tmp_path / "new", "LOKR", tensors | {"lokr_w2_b": random.normal(size=(3, 80))}, r=3, alpha=3)
    assert sizes == [(8, 8), (3, 3)]
    assert read_manifest(tmp_path / "new", WIDE).rank == 24
