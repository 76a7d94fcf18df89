"""Linears that are stored and read back: the same bits in every way, and no broken file is ever taken for whole."""

from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
import torch

from loraplex.quant.linears.dequantized import DequantizedLinear
from loraplex.quant.linears.packed import PackedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.side_by_side import SideBySideLinear
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.schemes.choose import choose_scheme
from loraplex.quant.storage.cpu_form import cpu_form
from loraplex.quant.storage.packed_file import BrokenPackedFile, PackedReader, PackedWriter
from loraplex.quant.weights.rounding import IntegerGrid, round_to_float8, round_to_integers
from loraplex.quant.weights.weights import Float4Weight, IntegerWeight, Weight

INPUTS, ROWS = 128, (70, 9)


def finished(weights: list[Weight], storage: torch.dtype = torch.bfloat16) -> LinearMethod:
    method = choose_scheme(torch.device("cpu"), storage).create_for(weights)
    return filled(method, weights)


def filled(method: LinearMethod, weights: list[Weight]) -> LinearMethod:
    for part, weight in enumerate(weights):
        method.load(part, weight, torch.randn(weight.shape[0]) if part == 0 else None)
    method.finish()
    return method


def floats(storage: torch.dtype = torch.float32) -> list[Weight]:
    return [torch.randn(rows, INPUTS).to(storage) for rows in ROWS]


def integers(bits: int, group: int | None, symmetric: bool = False) -> list[Weight]:
    grid = IntegerGrid(bits=bits, symmetric=symmetric)
    return [round_to_integers(torch.randn(rows, INPUTS), grid, group) for rows in ROWS]


def float4() -> list[Weight]:
    halves = [torch.randint(0, 256, (rows, INPUTS // 2), dtype=torch.uint8) for rows in ROWS]
    exponents = [torch.randint(120, 127, (rows, INPUTS // 32), dtype=torch.uint8) for rows in ROWS]
    return [Float4Weight(halves=pair[0], exponents=pair[1]) for pair in zip(halves, exponents, strict=True)]


def in_another_order(weight: Weight) -> Weight:
    """As GPTQ with activation order stores it."""
    assert isinstance(weight, IntegerWeight)
    group_of = torch.arange(INPUTS, dtype=torch.int32) * 7 % weight.scales.shape[1]
    return IntegerWeight(
        bits=weight.bits, values=weight.values, scales=weight.scales, zeros=weight.zeros, group_of=group_of
    )


def scaled() -> LinearMethod:
    inner = choose_scheme(torch.device("cpu"), torch.bfloat16).create_for(floats())
    return filled(ScaledInputLinear(inner, torch.rand(INPUTS) + 0.5), floats(torch.bfloat16))


def dequantized() -> LinearMethod:
    inner = StoredFloatLinear(INPUTS, ROWS, torch.float32)
    return filled(DequantizedLinear(inner, torch.float32), integers(4, 8))


CASES: dict[str, Callable[[], LinearMethod]] = {
    "bfloat16": lambda: finished(floats(torch.bfloat16)),
    "float16": lambda: finished(floats(torch.float16), torch.float16),
    "float32": lambda: finished(floats(), torch.float32),
    "int4": lambda: finished(integers(4, 64)),
    "int4 in an order": lambda: finished([in_another_order(weight) for weight in integers(4, 64)]),
    "int8": lambda: finished(integers(8, None, symmetric=True)),
    "fp8": lambda: finished([round_to_float8(weight) for weight in floats() if isinstance(weight, torch.Tensor)]),
    "mxfp4": lambda: finished(float4()),
    "side by side": lambda: finished([floats(torch.bfloat16)[0], integers(8, None)[1]]),
    "scaled inputs": scaled,
    "dequantized": dequantized,
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def write(path: Path, linears: dict[str, PackedLinear]) -> None:
    with FileIO(path, "w") as file:
        writer = PackedWriter(file)
        for name, packed in linears.items():
            writer.add(name, packed)
        writer.finish()
        assert writer.size == path.stat().st_size


def read(path: Path, *names: str) -> list[LinearMethod]:
    form, reader = cpu_form(), PackedReader(path, cpu_form().land)
    try:
        found = [reader.linear(name) for name in names]
    finally:
        reader.close()
    return [form.restore(packed) for packed in found if packed is not None]


def pack(method: LinearMethod) -> PackedLinear:
    packed = cpu_form().pack(method)
    assert packed is not None
    return packed


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_back_is_the_same_linear(tmp_path: Path, case: str) -> None:
    method = CASES[case]()
    write(tmp_path / "file", {"first": pack(CASES["float32"]()), "second": pack(method)})
    [again] = read(tmp_path / "file", "second")
    assert type(again) is type(method)
    assert (again.in_features, again.out_features) == (method.in_features, method.out_features)
    for rows in (1, 3, 40):
        x = torch.randn(rows, INPUTS)
        assert torch.equal(again.apply(x), method.apply(x))
    assert torch.equal(again.columns(2, 77), method.columns(2, 77))
    assert torch.equal(again.bias(), method.bias())
    assert again.weight_bytes() == method.weight_bytes()


def test_every_form_is_covered() -> None:
    assert {type(make()) for make in CASES.values()} == set(cpu_form().methods)
    assert type(CASES["side by side"]()) is SideBySideLinear


def test_whatever_is_cut_off_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, {"one": pack(CASES["int4"]())})
    whole = path.read_bytes()
    for size in {0, 1, 40, *range(0, len(whole), 97), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(BrokenPackedFile, match="cut off"):
            read(path, "one")


def test_whatever_is_changed_is_found(tmp_path: Path) -> None:
    """Each byte counts, but for the zeros between arrays."""
    path = tmp_path / "file"
    method = CASES["int8"]()
    write(path, {"one": pack(method)})
    whole, x = path.read_bytes(), torch.randn(2, INPUTS)
    found = 0
    places = {*range(0, len(whole), 61), *range(len(whole) - 60, len(whole))}
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            [again] = read(path, "one")
        except BrokenPackedFile:
            found += 1
        else:
            assert torch.equal(again.apply(x), method.apply(x)), place
    assert found > 0.9 * len(places)


def test_a_linear_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "file", {})
    assert read(tmp_path / "file", "one") == []
