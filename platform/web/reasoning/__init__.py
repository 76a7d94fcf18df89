"""Reasoning: the marks around what a model thinks before it answers, and where it ends in the text as it comes.

Knows no API format. Seam: `marks_of`, `prompt_end`, `ReasoningReader`.
"""
