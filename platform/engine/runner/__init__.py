"""From a step's plan to its drawn tokens: builds the step's tensors, runs the model, samples.

Decides nothing about who runs. Seam: `Runner` in `steps`; a backend for another device implements it.
"""
