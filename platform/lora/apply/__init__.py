"""How the adapters of a batch act on it: which token uses which slot, and the entry to the kernels.

Loads nothing and evicts nothing. Seam: `LoraBatch`, `add_lora`.
"""
