"""The usage ledger: who used what and when, written in small batches.

Knows no request. Seam: `Ledger` for writing, `Usage` for reading.
"""
