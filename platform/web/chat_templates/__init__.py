"""Chat templates: the operator's in a sandbox, an adapter's own in worker processes.

Seam: `ChatTemplate`, `TemplateWorkers`.
"""
