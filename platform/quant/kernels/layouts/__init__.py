"""How weights and activations lie in memory for the CPU kernels."""
