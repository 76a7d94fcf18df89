"""From an EngineConfig to an engine that is ready: weights, memory split, warm-up.

Runs once; nothing here is part of a step. Seam: `build_engine`, with a `Builder` for each kind of device.
"""
