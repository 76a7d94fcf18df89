"""Vectors of prompts in Python: embeddings, with vLLM's names and arguments.

Knows the engine's requests, and no model. Seam: `PoolingCalls`, which `LLM` inherits.
"""
