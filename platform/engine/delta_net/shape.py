"""StateShape: what one sequence keeps in one recurrent layer. No torch: start-up plans memory with it."""

from dataclasses import dataclass
from typing import Final

FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Of a gated delta net. A state is kept in float32, whatever the weights are stored in: it is summed up over the
    whole text, and what is rounded off once is never read again."""

    num_key_heads: int
    num_value_heads: int
    """A multiple of num_key_heads: each key head serves as many value heads in a row."""
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    """Taps of the causal convolution; the last conv_kernel - 1 inputs are part of the state."""

    def __post_init__(self) -> None:
        assert self.num_value_heads % self.num_key_heads == 0

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values side by side."""
        return 2 * self.key_size + self.value_size

    @property
    def slot_bytes(self) -> int:
        """Of one sequence in one layer."""
        recurrent = self.num_value_heads * self.key_head_dim * self.value_head_dim
        return FLOAT_BYTES * (recurrent + (self.conv_kernel - 1) * self.channels)
