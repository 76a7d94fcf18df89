"""Token ids in, token ids out: scheduler, paged KV cache, models, and the process they run in.

Knows no name, no key and no text of a request. Seams: `protocol` (all messages), `EngineCore.step` in `core`.
"""
