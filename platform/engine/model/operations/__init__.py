"""The steps of a layer that differ by device: norm, rotary embedding, activation, LoRA.

Seam: `Operations`; one file a device implements it.
"""
