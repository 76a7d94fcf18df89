"""Tool calls: how models write them, read out of an answer as it comes, and grammars that demand them.

Knows no API format. Seam: `Style` (one file a way of writing), `CallReader`, `grammar`.
"""
