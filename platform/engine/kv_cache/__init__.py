"""Which sequence holds which KV block and recurrent state, and which of them can be found by prefix.

Knows no tensors: those belong to `attention` and `delta_net`. Seams: `BlockPool`, `StatePool`.
"""
