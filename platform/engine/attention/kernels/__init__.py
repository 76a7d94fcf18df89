"""Attention loops compiled for the CPU. They import other kernels and nothing else of ours."""
