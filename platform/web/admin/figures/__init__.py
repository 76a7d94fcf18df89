"""Figures that several pages show: traffic, memory, the live state as one document.

Renders nothing.
"""
