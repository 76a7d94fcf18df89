"""Compiled loops of the decoder that are neither attention, LoRA nor linear. They import kernels alone."""
