"""The decoder: its configuration, weights, layers and linears."""
