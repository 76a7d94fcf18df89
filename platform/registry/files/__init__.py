"""Uploaded files: received, checked in child processes, kept once by the SHA-256 of their bytes, swept.

Believes nothing that a file says. Seam: `ArtifactStore`, `IncomingFile`, `Preflight`.
"""
