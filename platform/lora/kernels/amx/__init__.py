"""Shrink and expand in matrix registers of the CPU (Intel AMX)."""
