"""What is counted, timed and logged. Figures and names, never a text of a prompt.

Seam: `Metrics`, `RequestLog`.
"""
