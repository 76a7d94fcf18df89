"""Layers with experts on a CUDA device: routing, and what groups and sums rows. Nothing waits for the host."""
