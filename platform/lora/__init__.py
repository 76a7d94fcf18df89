"""Adapters: what they are, where they sit, how a batch of them is applied."""
