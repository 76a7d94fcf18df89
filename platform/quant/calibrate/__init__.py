"""Quantization that looks at activations: what calibration saw, AWQ and GPTQ, as arithmetic on weights and inputs.

Knows no model. Seam: `InputStatistics`, and a module for each method.
"""
