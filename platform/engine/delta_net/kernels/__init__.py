"""The loops of the gated delta net: convolution, recurrence, and the norm with its gate."""
