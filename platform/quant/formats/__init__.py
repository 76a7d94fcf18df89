"""How each kind of quantized checkpoint packs a linear, and what makes it unreadable."""
