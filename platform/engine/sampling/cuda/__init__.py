"""The sampler on a CUDA device, where the host waits for no token.

Seam: `CudaSampler`, token for token as `Sampler`.
"""
