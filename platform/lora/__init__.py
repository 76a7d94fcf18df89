"""Adapters: what they are, where they sit, how a batch of them is applied.

Knows no base weights but by `BaseModules`, and no request. Seams: `inspect_adapter`, `AdapterPool`, `LoraBatch`.
"""
