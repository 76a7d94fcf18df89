"""All that must hold before an adapter may be served, and every reason why not. No torch.

Seam: `inspect_adapter`, whose answer has an `AdapterManifest`.
"""
