"""Finished linears as files, so that the next start does not pack them again.

Seam: `PackedReader` and `PackedWriter`, with the `PackedForm` of a kind of device (`cpu_form`, `cuda_form`).
"""
