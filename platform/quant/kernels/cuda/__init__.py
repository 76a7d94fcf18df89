"""CUDA kernels of quantized weights (triton): packed 4- and 8-bit codes times 16-bit rows, and rows cast to float8."""
