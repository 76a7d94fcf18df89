"""CUDA's linears stored and read back, over the CPU in its place: the same bits in every way; and which are not."""

from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
import torch

from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.packed import PackedForm, PackedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.schemes import choose
from loraplex.quant.schemes.choose import FLOAT8_ACTIVATIONS, choose_cuda_scheme
from loraplex.quant.storage import cuda_form
from loraplex.quant.storage.packed_file import BrokenPackedFile, PackedReader, PackedWriter
from loraplex.quant.weights.online import OnlineQuantization
from loraplex.quant.weights.weights import Float8Inputs, Weight

from ..kernels.weights import random_float4, random_float8, random_integers

CPU = torch.device("cpu")
INPUTS, ROWS = 256, (80, 48)
ROUNDED = OnlineQuantization("fp8")


def form(online: OnlineQuantization = ROUNDED, activations: str = FLOAT8_ACTIVATIONS) -> PackedForm:
    return cuda_form.cuda_form(CPU, online, activations)


def integers(bits: int, groups: int, symmetric: bool = False, ordered: bool = True) -> list[Weight]:
    return [random_integers(rows, INPUTS, bits, groups, symmetric=symmetric, ordered=ordered) for rows in ROWS]


def float8(rows: int = 1, columns: int = INPUTS, inputs: Float8Inputs | None = None) -> list[Weight]:
    return [replace(random_float8(outputs, INPUTS, (rows, columns)), inputs=inputs) for outputs in ROWS]


def floats() -> list[Weight]:
    return [torch.randn(rows, INPUTS).bfloat16() for rows in ROWS]


def finished(weights: list[Weight], bias: bool = True, scales: torch.Tensor | None = None) -> LinearMethod:
    """`scales`: as of ScaledInputLinear."""
    method = choose_cuda_scheme(CPU, torch.bfloat16, online=ROUNDED).create_for(weights)
    if scales is not None:
        method = ScaledInputLinear(method, scales)
    for part, weight in enumerate(weights):
        method.load(part, weight, torch.randn(weight.shape[0]) if bias and part == 0 else None)
    method.finish()
    return method


STORED: dict[str, Callable[[], LinearMethod]] = {
    "int4": lambda: finished(integers(4, 2)),
    "int4 symmetric, without a bias": lambda: finished(integers(4, 4, symmetric=True), bias=False),
    "int4 in an order": lambda: finished(integers(4, 8, ordered=False)),
    "int8": lambda: finished(integers(8, 1)),
    "two widths": lambda: finished([integers(4, 2)[0], integers(8, 2)[1]]),
    "blocks of float8": lambda: finished(float8(32, 64)),
    "mxfp4": lambda: finished([random_float4(rows, INPUTS) for rows in ROWS]),
    "float8 by float8": lambda: finished(float8(inputs=Float8Inputs())),
    "float8 by float8, without a bias": lambda: finished(float8(inputs=Float8Inputs()), bias=False),
    "side by side": lambda: finished([integers(4, 2)[0], float8(inputs=Float8Inputs())[1]]),
    "scaled inputs": lambda: finished(integers(4, 2), scales=torch.rand(INPUTS) + 0.5),
}
NOT_STORED: dict[str, Callable[[], LinearMethod]] = {
    "floats": lambda: finished(floats()),
    "expanded to floats": lambda: finished(integers(4, 16)),
    "floats beside others": lambda: finished([floats()[0], integers(8, 1)[1]]),
    "floats with scaled inputs": lambda: finished(floats(), scales=torch.rand(INPUTS) + 0.5),
}


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device multiplies float8."""
    monkeypatch.setattr(choose, "multiplies_rows", lambda device: True)
    torch.manual_seed(0)


def write(path: Path, packed: PackedLinear) -> None:
    with FileIO(path, "w") as file:
        writer = PackedWriter(file)
        writer.add("one", packed)
        writer.finish()


def read(path: Path) -> PackedLinear:
    reader = PackedReader(path, form().land)
    try:
        packed = reader.linear("one")
    finally:
        reader.close()
    assert packed is not None
    return packed


def tensors(method: LinearMethod) -> list[torch.Tensor]:
    packed = form().pack(method)
    assert packed is not None
    return [array for one in (packed, *packed.inner) for array in one.arrays.values()]


@pytest.mark.parametrize("case", STORED)
@pytest.mark.parametrize("staged", [cuda_form.STAGED_BYTES, 97])
def test_what_is_read_back_is_the_same_linear(
    tmp_path: Path, case: str, staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece and in many, as its arrays are shorter or longer than what is staged of them."""
    monkeypatch.setattr(cuda_form, "STAGED_BYTES", staged)
    method = STORED[case]()
    packed = form().pack(method)
    assert packed is not None
    write(tmp_path / "file", packed)
    again = form().restore(read(tmp_path / "file"))
    assert type(again) is type(method)
    assert (again.in_features, again.out_features) == (method.in_features, method.out_features)
    assert torch.equal(again.columns(0, INPUTS), method.columns(0, INPUTS))
    assert torch.equal(again.bias(), method.bias())
    assert again.weight_bytes() == method.weight_bytes()
    for found, expected in zip(tensors(again), tensors(method), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert vars(again).keys() == vars(method).keys()


def test_every_form_is_covered() -> None:
    assert {type(make()) for make in STORED.values()} == set(form().methods)
    assert isinstance(STORED["two widths"](), CudaPackedLinear)


@pytest.mark.parametrize("case", NOT_STORED)
def test_what_the_checkpoint_holds_as_it_is_served_is_not_stored(case: str) -> None:
    assert form().pack(NOT_STORED[case]()) is None


def test_float8_of_a_checkpoint_is_not_stored_unless_it_is_packed() -> None:
    as_stored = form(OnlineQuantization())
    for scale in (None, 0.02):
        assert as_stored.pack(finished(float8(inputs=Float8Inputs(scale)))) is None
    assert as_stored.pack(STORED["blocks of float8"]()) is not None
    assert as_stored.pack(STORED["int8"]()) is not None


def test_devices_that_read_float8_and_others_have_files_of_their_own() -> None:
    assert form().identity != form(activations="").identity


@pytest.mark.parametrize("staged", [cuda_form.STAGED_BYTES, 97])
def test_whatever_is_changed_is_found(tmp_path: Path, staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever piece of an array it is in; each byte counts, but for the zeros between arrays."""
    monkeypatch.setattr(cuda_form, "STAGED_BYTES", staged)
    path, method = tmp_path / "file", STORED["int4"]()
    packed = form().pack(method)
    assert packed is not None
    write(path, packed)
    whole, found = path.read_bytes(), 0
    places = range(0, len(whole), 83)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            again = form().restore(read(path))
        except BrokenPackedFile:
            found += 1
        else:
            assert torch.equal(again.columns(0, INPUTS), method.columns(0, INPUTS)), place
    assert found > 0.9 * len(places)
