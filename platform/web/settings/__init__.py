"""All that an operator may set: flags, environment, TOML file, defaults; and where each value is from.

Seam: `Settings`.
"""
