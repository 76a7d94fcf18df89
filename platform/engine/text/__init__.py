"""Text to token ids and back. No torch.

Knows no request. Seam: `Tokenizer`, `Detokenizer`.
"""
