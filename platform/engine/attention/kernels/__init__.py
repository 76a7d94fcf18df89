"""Attention loops compiled for the device; they import nothing of ours."""
