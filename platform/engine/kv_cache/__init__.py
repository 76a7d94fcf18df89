"""Which sequence holds which KV block, and which blocks can be shared by prefix.

Knows no tensors: those belong to `attention`. Seam: `BlockPool`.
"""
