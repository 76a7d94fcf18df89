"""Certificates: what serving costs an adapter's answers. Ordered, measured one by one, kept for good.

Measures nothing itself. Seam: `Certificates`, `CertificateRuns`.
"""
