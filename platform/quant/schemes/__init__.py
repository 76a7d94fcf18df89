"""Which linear methods store and multiply the weights of a model on this machine, and why.

Knows no model. Seam: `choose_scheme`, which answers a `SchemeSelector`.
"""
