"""Parity certificates: what they are of here, whether they still hold, and measuring them in the background.

Seam: `ServedPath`, `Certifier`, `find_standing`.
"""
