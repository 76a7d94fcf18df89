"""The Triton kernels of shrink and expand, and of what adapters bring for tokens and norms."""
