"""The words in which a family says what a model computes, and how fields of a config.json are read. No torch.

Knows no family. Seam: `ModelSpec`.
"""
