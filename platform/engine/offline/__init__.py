"""The engine inside your own process: `LLM`, and calibration of KV-cache scales with it.

Seam: `LLM.generate`, with vLLM's names.
"""
