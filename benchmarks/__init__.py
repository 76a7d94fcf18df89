"""Benchmarks anyone can run: ratios against a peer measured in the same run, medians of interleaved rounds."""
