"""Certificates: what serving costs an adapter's answers. Ordered, measured one by one, kept for good.

Seam: `Certificates`.
"""
