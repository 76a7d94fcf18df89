"""Ways to store and multiply the weights of a linear group, one a file.

Knows no LoRA and no model. Seam: `LinearMethod` in `scheme`; `schemes` chooses among them.
"""
