"""Adapters of other kinds brought to LoRA as they are uploaded: the same change of the weights. No torch.

Seam: `convert_adapter`.
"""
