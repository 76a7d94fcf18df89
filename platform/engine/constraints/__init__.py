"""Structured output: which tokens a choice may draw next, worked out by a process of its own.

Knows no model and no device. Seam: `GrammarManager`.
"""
