"""Where an adapter's weights are: on disk, in host memory, in rank pages on the device; and who leaves for whom.

Knows no request and no step. Seam: `AdapterPool`, the engine's only door to adapters.
"""
