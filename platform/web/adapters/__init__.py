"""The engine is brought to the registry's desired state; uploads and changes of one adapter take turns.

Seam: `EngineDoor` (what the web layer asks of an engine), `Reconciler`.
"""
