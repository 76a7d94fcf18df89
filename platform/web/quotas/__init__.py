"""What a request may still use: reserved at its admission, settled at its end, refused with 429.

Seam: `Quotas.admit`, `Admission`.
"""
