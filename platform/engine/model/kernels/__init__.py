"""The decoder as one compiled call."""
