"""CUDA kernels of the decoder (triton) that are neither attention, LoRA nor linear: norm, gate, embedding, sampling."""
