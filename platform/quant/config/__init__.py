"""What a checkpoint's config.json says of its quantization: which tensors stand for each linear. No torch.

Knows no weight and no kernel. Seam: `QuantizationConfig`.
"""
