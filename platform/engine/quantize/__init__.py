"""Quantizing a checkpoint: calibration text, a plain forward, one layer after the other, the new checkpoint's files."""
