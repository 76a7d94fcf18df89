"""CUDA kernels of the paged KV cache (triton): rope and write, attention in tiles of queries and splits of keys."""
