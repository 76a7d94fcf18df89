"""What the processor can do: vectors, dot products and matrix registers, by instruction set, and the tiles of them."""
