"""Paged attention behind one small interface, one backend for each kind of device.

Knows no scheduler and no adapter. Seam: `AttentionBackend`, which `cpu_attention` and `cuda_attention` open. Encoders
keep no cache: `EncoderAttention`.
"""
