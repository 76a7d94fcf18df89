"""Families whose layers have experts, one file each, as in the room above. Reads JSON and knows no tensor.

Seam: each file's `FAMILY`; `experts.py` has what they share.
"""
