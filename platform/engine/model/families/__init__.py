"""One file a family: what its config.json says, as a ModelSpec. Reads JSON and knows no tensor.

Seam: `find_family`. A new family is a new file here with a `FAMILY`; nothing else knows its name.
Those with experts: `mixtures`.
"""
