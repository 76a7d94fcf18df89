"""The gated delta net: a convolution and a recurrent state in the place of attention. Owns the state tensors.

Knows no scheduler and no prefix: it is told which slot each sequence's state is in. Seam: `DeltaNetBackend`.
"""
