"""The decoder's layers as one compiled call."""
