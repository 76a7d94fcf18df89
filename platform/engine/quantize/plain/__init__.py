"""A layer as a plain forward in torch, on whole prompts: what calibration watches and certificates compare with.

Shares no code with the served path. Seam: `layer_forward` in `forward`.
"""
