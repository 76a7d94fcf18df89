"""The loops of the gated delta net on CUDA (triton)."""
