"""Adapters, versions, aliases and their routes: what may change, and each change as one transaction.

Knows no HTTP and no engine. Seam: `Adapters`, and the immutable `views` that others read.
"""
