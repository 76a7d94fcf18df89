"""Vectors over HTTP: OpenAI's embeddings and vLLM's pooling.

Each endpoint has a Call and a Format, as those that generate text. Seam: `routes.routers`.
"""
