"""Matrix loops compiled for the device. They import other kernels and nothing else of ours.

Seam: `any_linear`, the one door for compiled callers on a CPU.
"""
