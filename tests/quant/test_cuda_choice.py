"""Which CUDA scheme takes which weight, by what the scheme says of activations and what the device can do."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from loraplex.quant.config.config import QuantizationConfig, parse_quantization
from loraplex.quant.linears import scaled_products
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.linears.scaled_products import multiplies_rows
from loraplex.quant.linears.side_by_side import SideBySideLinear
from loraplex.quant.schemes import choose
from loraplex.quant.schemes.choose import choose_cuda_scheme
from loraplex.quant.schemes.selector import SchemeSelector
from loraplex.quant.weights.online import OnlineQuantization
from loraplex.quant.weights.weights import Float8Inputs
from tests.cards import CARDS, use_card

from .kernels.weights import random_float8, random_integers

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CHANNELS = random_float8(32, 64, (1, 64))
BY_TOKEN, STATIC = (replace(CHANNELS, inputs=Float8Inputs(scale)) for scale in (None, 0.02))
PROBE = multiplies_rows.__wrapped__


def said(scheme: str | None) -> QuantizationConfig | None:
    return parse_quantization({"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}})


def choice(
    can: bool, monkeypatch: pytest.MonkeyPatch, storage: torch.dtype = torch.bfloat16, **more: Any
) -> SchemeSelector:
    monkeypatch.setattr(choose, "multiplies_rows", lambda device: can)
    return choose_cuda_scheme(CPU, storage, **({"quantization": said("dynamic")} | more))


def test_float8_activations_are_multiplied_where_the_device_can(monkeypatch: pytest.MonkeyPatch) -> None:
    able, unable = choice(True, monkeypatch), choice(False, monkeypatch)
    assert able.reason.endswith("weights, bfloat16 arithmetic, float8 linears multiply activations cast to float8")
    assert able.activations == choose.FLOAT8_ACTIVATIONS
    assert unable.reason.endswith("bfloat16 arithmetic, no activations cast to float8") and not unable.activations
    for weight, scale in ((BY_TOKEN, None), (STATIC, 0.02)):
        method = able.create_for([weight])
        assert isinstance(method, CudaScaledFloat8Linear) and method.input_scale == scale
        assert isinstance(unable.create_for([weight]), CudaPackedLinear)


def test_weights_alone_and_what_a_scaled_product_cannot_do_keep_activations_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    able = choice(True, monkeypatch)
    blocks = replace(random_float8(64, 64, (32, 32)), inputs=Float8Inputs())
    odd = [replace(random_float8(*shape, (1, shape[1])), inputs=Float8Inputs()) for shape in ((40, 64), (32, 72))]
    for weight in (CHANNELS, blocks, *odd, random_integers(32, 64, 8, 1)):
        assert isinstance(able.create_for([weight]), CudaPackedLinear)
    half = choice(True, monkeypatch, torch.float16)
    assert isinstance(half.create_for([BY_TOKEN]), CudaPackedLinear) and not half.activations
    weights_only = choice(True, monkeypatch, quantization=None)
    assert "float8" not in weights_only.reason and not weights_only.activations


def test_parts_with_static_scales_of_their_own_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    able, other = choice(True, monkeypatch), replace(CHANNELS, inputs=Float8Inputs(0.03))
    method = able.create_for([STATIC, STATIC, other])
    assert isinstance(method, SideBySideLinear)
    assert [part.out_features for part in method.inner] == [(32, 32), (32,)]


def test_what_is_rounded_at_load_reads_float8_too(monkeypatch: pytest.MonkeyPatch) -> None:
    online = OnlineQuantization("fp8")
    able = choice(True, monkeypatch, quantization=None, online=online)
    weight = online.linear(torch.randn(32, 64))
    assert isinstance(able.create_for([weight]), CudaScaledFloat8Linear) and able.activations
    assert not choice(True, monkeypatch, quantization=None, online=OnlineQuantization("int8")).activations


def test_devices_without_float8_units_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    use_card(monkeypatch, CARDS[86])
    monkeypatch.setattr(torch, "_scaled_mm", lambda *arguments, **named: pytest.fail("it was asked"))
    assert not PROBE(CUDA)


def test_the_scaled_product_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in this build for this device, not for some numbers of rows, or with another result."""

    def right(values: Any, weight: Any, scales: Any, others: Any, bias: Any, **named: Any) -> torch.Tensor:
        product: torch.Tensor = (values.float() * scales) @ (weight.float() * others) + bias.float()
        return product.bfloat16()

    def odd_rows(values: Any, *rest: Any, **named: Any) -> torch.Tensor:
        if len(values) == 3:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        return right(values, *rest, **named)

    def by_tensor(values: Any, weight: Any, scales: Any, others: Any, bias: Any, **named: Any) -> torch.Tensor:
        return right(values, weight, scales[:1], others[:, :1], bias)

    monkeypatch.setattr(scaled_products.torch, "_scaled_mm", right)
    assert PROBE(CPU)
    for product in (odd_rows, by_tensor):
        monkeypatch.setattr(scaled_products.torch, "_scaled_mm", product)
        assert not PROBE(CPU)

    def without_memory(*arguments: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(scaled_products.torch, "_scaled_mm", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        PROBE(CPU)


def test_powers_that_are_a_last_place_off_are_not_taken_for_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As devices may have it: their product scales sums, and what it is compared with is scaled before."""
    power = torch.Tensor.__rpow__

    def off(tensor: torch.Tensor, base: Any) -> torch.Tensor:
        beyond = torch.where(tensor % 2 == 0, torch.inf, 0.0)
        return torch.nextafter(power(tensor, base), beyond)

    def product(values: Any, weight: Any, scales: Any, others: Any, bias: Any, **named: Any) -> torch.Tensor:
        scaled: torch.Tensor = (values.float() @ weight.float()) * scales * others + bias.float()
        return scaled.bfloat16()

    monkeypatch.setattr(torch.Tensor, "__rpow__", off)
    monkeypatch.setattr(scaled_products.torch, "_scaled_mm", product)
    assert PROBE(CPU)
