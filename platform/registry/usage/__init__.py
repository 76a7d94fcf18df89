"""The usage ledger: written in small batches, read by whom, what and when.

Seam: `Ledger` for writing, `Usage` for reading.
"""
