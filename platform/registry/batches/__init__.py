"""Tenants' files, and batches of requests: their rows, and the journal that makes each line run and count once.

Knows no HTTP and no engine. Seam: `Files`, `Batches`, `Journal`.
"""
