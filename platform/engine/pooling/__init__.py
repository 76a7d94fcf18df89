"""One vector of a prompt instead of a text: what is asked for, and the arithmetic after the last hidden state.

Knows no tensors and no requests. Seam: `Pooling`, a field of a GenerateRequest.
"""
