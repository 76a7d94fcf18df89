"""The engine in Python: `LLM` and `LLMEngine` in your own process, `AsyncLLM` over a process of its own.

Knows no HTTP. Seam: these three, with vLLM's names and arguments.
"""
