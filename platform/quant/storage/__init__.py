"""Finished linears as files, so that the next start does not pack them again.

Seam: `PackedForm` of each kind of device, and the packed file.
"""
