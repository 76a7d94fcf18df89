"""What quantizing a checkpoint did, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far the layer's contribution to the residual stream is off on held-out text, relative to itself."""

    layer: int
    nearest: float
    """Rounded to nearest, without looking at activations."""
    chosen: float
    """As written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationReport:
    scheme: str
    output: str
    bytes_before: int
    """Of all tensors, as `bytes_after`."""
    bytes_after: int
    held_out_tokens: int
    """Tokens that were predicted for the perplexities."""
    perplexity_before: float
    perplexity_after: float
    layers: list[LayerError]
    unseen: list[str]
    """Linears that were rounded to nearest, as too few tokens of the calibration text came to them: of experts that few
    tokens are routed to."""
    seconds: float
