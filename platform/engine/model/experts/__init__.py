"""Layers with experts: their tensors in a checkpoint, and what a step computes with them.

Knows no family and no adapter. Seams: `Experts` in layer.py, `split_stacked` in stacked.py.
"""
