"""All that must hold before an adapter may be served, and every reason why not.

Seam: `inspect_adapter`.
"""
