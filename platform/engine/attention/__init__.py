"""Paged attention behind one small interface, one backend for each kind of device.

Knows no scheduler and no adapter. Seam: `AttentionBackend`; `CpuAttention` and `CudaAttention` implement it.
"""
