"""Shrink and expand on CPUs with Intel AMX: in matrix registers, or in AVX-512 registers for tokens that fill none."""
