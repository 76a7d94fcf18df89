"""The database and the artifact store: adapters, versions, aliases, keys, audit.

Knows no HTTP and no engine. Seam: `Registry`; `Snapshots.current` for what requests read.
"""
