"""The engine behind a process boundary: the API process's client on one side, the server loop on the other.

The client side imports no torch. Seam: `EngineClient`, the API process's only door to the engine.
"""
