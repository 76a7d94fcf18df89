"""Shrink and expand loops. They import other kernels and nothing else of ours."""
