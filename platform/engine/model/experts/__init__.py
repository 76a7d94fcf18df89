"""Layers with experts: their tensors in a checkpoint, and what a step computes with them.

Knows no family. Seams: `Experts` in layer.py, `split_stacked` in stacked.py.
"""
