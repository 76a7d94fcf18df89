"""Shrink and expand on CPUs with Intel AMX: in matrix registers, and `avx512_*` for tokens that fill none."""
