"""Usage is flushed to the ledger in the background, and written as CSV.

Seam: `Bookkeeper`.
"""
