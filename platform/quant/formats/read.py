"""Any quantized linear: what its tensors must be, and the weight they stand for."""

from collections.abc import Container, Mapping

import torch

from ..config.layouts import AwqLayout, Float8Layout, GptqLayout, IntegerLayout, Layout, Mxfp4Layout
from ..weights.weights import CodedWeight
from . import awq, compressed_tensors, fp8, gptq, mxfp4
from .specification import BESIDE, IGNORED, Linear, TensorSpec


def tensor_specs(layout: Layout, linear: Linear, present: Container[str]) -> dict[str, TensorSpec]:
    """Suffix of the name -> what it must be; `present` holds the suffixes the checkpoint has of this linear. ValueError
    when `layout` cannot be that of a linear of this shape."""
    return dict.fromkeys(BESIDE, IGNORED) | _weight_specs(layout, linear, present)


def _weight_specs(layout: Layout, linear: Linear, present: Container[str]) -> dict[str, TensorSpec]:
    match layout:
        case AwqLayout():
            return awq.tensors(layout, linear)
        case GptqLayout():
            return gptq.tensors(layout, linear)
        case IntegerLayout():
            return compressed_tensors.tensors(layout, linear)
        case Float8Layout():
            return fp8.tensors(layout, linear, present)
        case Mxfp4Layout():
            return mxfp4.tensors(linear)


def read_weight(layout: Layout, linear: Linear, tensors: Mapping[str, torch.Tensor]) -> CodedWeight:
    """Of the tensors that are there by suffix, each as `tensor_specs` says. ValueError for what no weight can hold."""
    match layout:
        case AwqLayout():
            return awq.read(layout, linear, tensors)
        case GptqLayout():
            return gptq.read(layout, linear, tensors)
        case IntegerLayout():
            return compressed_tensors.read(layout, linear, tensors)
        case Float8Layout():
            return fp8.read(layout, linear, tensors)
        case Mxfp4Layout():
            return mxfp4.read(linear, tensors)
