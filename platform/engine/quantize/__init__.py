"""Quantizing a checkpoint: calibration text, a plain forward, one layer after the other, the new checkpoint's files.

Seam: `quantize_checkpoint` in `run`. The new folder appears complete or not at all.
"""
