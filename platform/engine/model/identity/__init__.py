"""Which checkpoint is this: the fingerprint that keys KV blocks, and the digest that a certificate names.

Reads files and knows no tensor. Seam: `fingerprint_weights`, `model_digest`.
"""
